"""Settings that every model takes beside its schema, and the refusal of invalid settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Annotated, Any, SupportsIndex, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from privacy.errors import ClustMixError, ConfigurationError
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.schema.faults import one_line
from storage.schema.plain_yaml import refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clustmix.guarantee import Guarantee
    from tasks.measurement import method

_SHORT = 80
_Model = TypeVar("_Model", bound=BaseModel)


MAX_ROWS = 10_000_000
"""Most rows of one call of `clustmix.Synthesizer.sample`, as of one release."""


class NotFittedError(ClustMixError, ValueError, AttributeError):
    """A model that has measured nothing yet was asked for the result of a measurement.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> NaiveBayes(schema, epsilon=1.0, delta=1e-6).sample(5)
    Traceback (most recent call last):
    clustmix.target.NotFittedError: NOT_FITTED: expected a fitted model, ...
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A measurement: the bound method, its arrays, their guarantee, and the file of all of it.

    The sums are those of a method that can be pooled; a pool and a draw have no file.
    """

    method: method.Synthesizer
    released: dict[str, NDArray[Any]]
    sums: dict[str, NDArray[Any]]
    guarantee: Guarantee
    file: bytes | None
    library: Any


class Target(BaseModel):
    """Guarantee, protected patient, approximate number of patients, and number of parts."""

    model_config = ConfigDict(strict=True, frozen=True)

    epsilon: float
    delta: float
    adjacency: Annotated[Adjacency, Strict(False)]
    patient_column: str | None
    max_rows_per_patient: int
    patients: Annotated[int, Field(ge=1, le=10_000_000_000)] | None
    parts: Annotated[int, Field(ge=1, le=1000)]

    @property
    def parameters(self) -> PrivacyParameters:
        """Epsilon and delta (ConfigurationError out of their ranges)."""
        return PrivacyParameters(epsilon=self.epsilon, delta=self.delta)

    @property
    def unit(self) -> PrivacyUnit:
        """The protected patient (ConfigurationError for several rows without a column)."""
        return PrivacyUnit(column=self.patient_column, max_rows=self.max_rows_per_patient)


def checked(model: type[_Model], given: Mapping[str, Any], *, of: str) -> _Model:
    """Check settings by name; a ConfigurationError of one line names each that is refused."""
    # Strict validation takes numbers of Python, not of numpy.
    plain = {
        name: value.item() if hasattr(value, "item") else value for name, value in given.items()
    }
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        refused = in_one_line("SETTING_INVALID", error, plain, of=of)
    raise refused


def in_one_line(
    code: str, error: ValidationError, given: Mapping[str, Any], *, of: str, place: str = ""
) -> ConfigurationError:
    """Return a class's refusal in one line; if `place` names a file, no value of it is repeated."""
    names = (
        {}
        if place
        else dict.fromkeys(fault["loc"][0] for fault in error.errors() if len(fault["loc"]) == 1)
    )
    values = [f"{name}={given[name]!r}" for name in map(str, names) if name in given]
    found = ", ".join(value for value in values if len(value) <= _SHORT)
    return refusal(
        code,
        f"{place or of}: {one_line(error, dict(given))}{f'; found {found}' if found else ''}; "
        f"help(clustmix.{of}) has the ranges",
    )


def row_count(n: SupportsIndex | None, *, declared: int | None) -> int:
    """Return the number of rows to sample: `n`, or the declared number of patients."""
    asked = declared if n is None else n
    n_rows = index(asked) if isinstance(asked, SupportsIndex) else 0
    if not 1 <= n_rows <= MAX_ROWS:
        raise ConfigurationError(
            "ROWS_INVALID",
            f"expected a whole number n from 1 to {MAX_ROWS:,}, found {asked!r}; give sample(n), "
            "as often as wanted, or patients=... in the constructor",
        )
    return n_rows
