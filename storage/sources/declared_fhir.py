"""Declared FHIR exports, and the expressions of FHIRPath over the resources of one patient.

Only the functions listed in ``fhir.toml`` are allowed. Those that read a clock, write a trace or
read elements that the expression does not name are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from privacy.errors import extra
from storage.files.documents import KEPT, listed
from storage.schema.columns import Declaration, left_out
from storage.sources.places import PrintablePath, SourcePlace

PATIENT = "patient"
"""Column that names the patient: the id of the resource Patient."""

_LISTED = listed(__package__, "fhir.toml")
SUBJECTS = {
    kind: element for element, kinds in _LISTED["of_patient"].items() for kind in kinds.split()
}
"""Element that names the patient, by type of resource."""
_FUNCTIONS, TIMES = (tuple(_LISTED["words"][name].split()) for name in ("functions", "times"))
_TYPES = frozenset({"Patient", *SUBJECTS})


class _FhirFeature(Declaration):
    """One column: an expression over the resources of a patient."""

    column: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    """Name of the column."""
    expression: Annotated[str, Field(min_length=1, max_length=2000)]
    """Expression of FHIRPath (R4) with one value or none: text, number, ``true`` or ``false``.
    Every path begins with a type of resource."""


class FhirSource(SourcePlace):
    """A folder of a FHIR bulk export: files ``*.ndjson``, one resource of R4 a line.

    A row is a patient, with ``patient`` (the id of the resource ``Patient``) as
    ``privacy_unit.column`` and the features as columns. An expression sees the resources of its
    patient alone, sorted by type, time and id, so ``.last()`` is the latest. Needs the extra
    ``hospital``.
    """

    kind: Literal["fhir"]
    path: PrintablePath
    """The folder."""
    features: Annotated[tuple[_FhirFeature, ...], Field(min_length=1, max_length=500)]
    """Columns beside ``patient``, the label among them."""
    each: Annotated[str, Field(min_length=1, max_length=2000)] | None = left_out()
    """For events: resources, such as ``Observation.where(status = 'final')``, each a row whose
    columns see it alone."""

    @model_validator(mode="after")
    def _complete(self, info: ValidationInfo) -> Self:
        names = [feature.column for feature in self.features]
        if len({*names, PATIENT}) != len(names) + 1:
            raise ValueError(f"expected each column once, and none called {PATIENT}")
        texts = {"each": self.each} if self.each else {}
        texts |= {f"column {feature.column}": feature.expression for feature in self.features}
        for place, text in texts.items() if info.context != KEPT else ():
            try:
                types, _ = parse_expression(text)
                if self.each and not types <= parse_expression(self.each)[0]:
                    raise ValueError("expected the types of resources in each only")
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
        return self


Expression = tuple[frozenset[str], Callable[..., Sequence[object]]]
"""A parsed expression: the types of resources that it names, and its function."""


@lru_cache(maxsize=1)
def known_types() -> frozenset[str]:
    """Return every type of resource of R4, including those that no expression may name."""
    with extra("hospital"):
        from fhirpathpy.models import models
    above = models["r4"]["type2Parent"].items()
    return frozenset(kind for kind, parent in above if parent in ("Resource", "DomainResource"))


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> Expression:
    """Parse an expression over the resources of one patient.

    Every path begins with a type of resource, such as ``Observation``, and is evaluated over the
    patient's resources of that type in R4. It is a ValueError if the text does not parse or holds
    anything else; MissingExtra without the packages of the extra ``hospital``.
    """
    with extra("hospital"):
        import fhirpathpy
        from antlr4 import CommonTokenStream, InputStream
        from fhirpathpy.models import models
        from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
        from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

    # The parser of the package continues after an error with a partial tree.
    lexer = FHIRPathLexer(InputStream(text))
    parser = FHIRPathParser(CommonTokenStream(lexer))
    faults: list[str] = []
    for one in (lexer, parser):
        one.removeErrorListeners()
        one.addErrorListener(_Faults(faults))
    parser.entireExpression()  # type: ignore[no-untyped-call]
    if faults:
        raise ValueError("expected an expression of FHIRPath; this one could not be parsed")
    tree: Mapping[str, Any] = fhirpathpy.parse(text)  # type: ignore[no-untyped-call]
    types: set[str] = set()
    _check(tree, types, inside=False)
    if not types:
        raise ValueError(_NO_TYPE)
    return frozenset(types), fhirpathpy.compile(text, models["r4"])


_NO_TYPE = (
    "expected every path to begin with a type of resource that holds a patient, such as "
    "Observation.where(...)"
)


class _Faults:
    """Listener of the parser that collects errors and ignores reports of ambiguity."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults

    def syntaxError(self, *_: object) -> None:
        self._faults.append("syntax")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def _check(node: Mapping[str, Any], types: set[str], *, inside: bool) -> None:
    """Check a node and those below; in parameters (`inside`), a path may begin anywhere."""
    kind = node["type"] if "type" in node else ""
    if kind == "ExternalConstantTerm":
        raise ValueError("expected no variable (%name) in an expression")
    if kind == "Functn":
        name = _words(node["children"][0])
        if name not in _FUNCTIONS:
            raise ValueError(
                f"found the function {name[:40]}, which is not among those known to depend on "
                "their arguments alone"
            )
    if kind == "InvocationTerm":
        names = [child for child in node["children"] if child["type"] == "MemberInvocation"]
        begins = {_words(child) for child in names}
        if not inside and not (begins <= _TYPES):
            raise ValueError(_NO_TYPE)
        types |= begins & _TYPES
    for child in node.get("children", ()):
        _check(child, types, inside=inside or kind == "ParamList")


def _words(node: Mapping[str, Any]) -> str:
    return "".join(_texts(node)).strip("`")


def _texts(node: Mapping[str, Any]) -> Iterator[str]:
    yield from node.get("terminalNodeText", ())
    for child in node.get("children", ()):
        yield from _texts(child)
