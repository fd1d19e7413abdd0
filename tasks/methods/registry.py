"""The closed list of methods that a site file can name.

No plug-ins and no import paths of others: third-party code cannot enter a release. A method is one
entry of ``methods.toml`` and the module that it names; `CONTRIBUTING.md` says how one is added.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from privacy.errors import ConfigurationError, extra
from privacy.parameters import PrivacyParameters

if TYPE_CHECKING:
    from tasks.measurement.encoded import EncodingDomain
    from tasks.measurement.method import PaperForm, Synthesizer


class DataKind(StrEnum):
    """What a method is meant for; it runs on any declared table."""

    TABLES = "tables"
    IMAGES = "images"
    ITEMS = "items"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """What is public knowledge about a method, as ``methods.toml`` beside this module says it.

    Kind, class name and title are its name in a site file, of its class in `clustmix`, and for
    people. Its settings, a pydantic model with the field ``kind``, and its proven form and that of
    the paper, None where there is none, are classes as ``module:class`` below `tasks`: they are
    loaded where they are used, as some need seconds. Histograms are the names of its statistics
    that count codes by label, in any of its forms: by `tasks.measurement.centred.label_counts`.

    Raise the version if the same settings and rows give other draws or other released arrays, which
    `tests/tasks/test_golden_arrays.py` notices: every table released with the method is then
    measured again, and charged. Leave it alone whenever they stay the same.
    """

    kind: str
    class_name: str
    title: str
    source: str
    data_kinds: tuple[DataKind, ...]
    settings: str
    version: int
    histograms: tuple[str, ...] = ()
    proven: str | None = None
    paper: str | None = None

    @property
    def config(self) -> type[BaseModel]:
        """The class of its settings."""
        return cast(type[BaseModel], _class_of(self.settings))

    @property
    def has_paper_form(self) -> bool:
        """Whether the algorithm of the paper can be run on public data for comparison."""
        return self.paper is not None


_FILE = resources.files(__package__).joinpath("methods.toml")

METHODS = tuple(
    MethodEntry(
        kind=kind,
        data_kinds=tuple(map(DataKind, facts.pop("data_kinds"))),
        histograms=tuple(facts.pop("histograms", ())),
        **facts,
    )
    for kind, facts in tomllib.loads(_FILE.read_text("utf-8")).items()
)


def method_entry(kind: str) -> MethodEntry:
    """Entry of a registered method; KeyError names an unknown one."""
    for entry in METHODS:
        if entry.kind == kind:
            return entry
    raise KeyError(f"expected a registered method, found {kind!r}")


def build(config: Any, domain: EncodingDomain) -> Synthesizer:
    """Bind the proven form of a method to a public domain (ConfigurationError if it has none)."""
    entry = method_entry(config.kind)
    if entry.proven is None:
        raise ConfigurationError(
            "NO_PROVEN_FORM",
            f"expected a method with a proven form (clustmix methods lists them), found "
            f"{config.kind!r}; it runs in a benchmark on public data only",
        )
    return cast("Synthesizer", _class_of(entry.proven)(domain, config))


def build_paper(
    config: Any,
    domain: EncodingDomain,
    parameters: PrivacyParameters,
    *,
    clock: Callable[[], float] | None = None,
) -> PaperForm:
    """Bind the paper form of a method; ConfigurationError if settings do not fit.

    `clock`, monotonic and in seconds, is for methods that give up a search when it takes long.
    """
    entry = method_entry(config.kind)
    if entry.paper is None:
        raise KeyError(f"expected a method with a paper form, found {config.kind!r}")
    with extra("papers"):
        bound = _class_of(entry.paper)
    if config.kind == "clustmix":
        return cast("PaperForm", bound(domain, config, parameters, clock))
    return cast("PaperForm", bound(domain, config, parameters))


def _class_of(form: str) -> Callable[..., Any]:
    module, _, name = form.partition(":")
    return cast(Callable[..., Any], getattr(import_module(f"tasks.{module}"), name))
