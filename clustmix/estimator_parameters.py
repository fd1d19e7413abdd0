"""Settings of a model: taken by name, checked at once, read and changed as in scikit-learn."""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from clustmix.schema import Schema, require_schema
from clustmix.target import Target, checked
from privacy.errors import refusals
from tasks.methods.registry import build, method_entry

if TYPE_CHECKING:
    from tasks.measurement import method

refusal = refusals(__package__)


@dataclass(eq=False, repr=False, kw_only=True)
class Parameters:
    """Parameters that all methods share; a class of `clustmix.methods` adds its own."""

    kind: ClassVar[str] = ""
    """Name of the method in a site file."""

    schema: Schema = field(kw_only=False)
    epsilon: float
    delta: float
    adjacency: Literal["add_remove", "replace_one"] = "add_remove"
    patient_column: str | None = None
    max_rows_per_patient: int = 1
    patients: int | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        if not self.kind:
            raise TypeError("expected a class of a method, such as clustmix.ClustMix")
        self._spent = False
        self._bound()  # refuses what does not fit, before any table is at hand

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as the constructor takes them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change settings of a model that is not fitted; all of them, or none if one is refused.

        Raises
        ------
        ValueError
            If there is no setting of this name.
        ConfigurationError
            If a setting is out of its range, or the model is fitted: its guarantee was drawn under
            the settings that it has.
        """
        self._require_unspent()
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(f"expected a setting ({', '.join(known)}), found {name!r}")
        self.__class__(**{**known, **params})
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _shown(self) -> dict[str, Any]:
        """Return epsilon, delta, and settings that are not the default."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name in ("epsilon", "delta")
            or (one.name != "schema" and getattr(self, one.name) != one.default)
        }

    def _declared_rows(self) -> int | None:
        """Return the declared number of patients, a public one, if there is any."""
        return self.patients

    def _target(self) -> Target:
        given = {name: getattr(self, name) for name in Target.model_fields}
        target = checked(Target, given, of=self.__class__.__name__)
        _ = target.parameters, target.unit
        if target.patient_column in (*self.schema.released_columns, *self.schema.ignore):
            raise refusal("PRIVACY_UNIT_INVALID", patient=target.patient_column)
        return target

    def _settings(self) -> Any:
        """Return the settings of the method itself, checked."""
        common = {one.name for one in fields(Parameters)}
        given = {name: value for name, value in self.get_params().items() if name not in common}
        return checked(method_entry(self.kind).config, given, of=self.__class__.__name__)

    def _bound(self) -> "method.Synthesizer":
        """Return the method, bound to the public domain of the table."""
        from tasks.ingest.encoding import domain_of

        require_schema(self.schema)
        target, domain = self._target(), domain_of(self.schema)
        rows = target.max_rows_per_patient
        given: dict[str, Any] = {"patients": target.patients, "parts": target.parts}
        domain = replace(domain, rows_per_patient=rows, **given)
        if not self.schema.events:
            return build(self._settings(), domain)
        from tasks.histories.event_frames import event_release

        if self.kind != "clustmix" or domain.image or rows > 1 or not target.patient_column:
            raise refusal("EVENTS_INVALID")
        return event_release(self.schema, self.schema.events, domain)

    def _require_unspent(self) -> None:
        if self._spent:
            raise refusal("FITTED")
