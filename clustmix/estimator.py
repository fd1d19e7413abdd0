"""Habits of scikit-learn: a constructor of settings alone, parameters, fitted or not."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privacy.errors import ClustMixError, ConfigurationError
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.schema.plain_yaml import one_line, refusal
from storage.schema.table import TableSchema
from tasks.methods.registry import MethodEntry, build

if TYPE_CHECKING:
    from clustmix.guarantee import Guarantee
    from tasks.measurement import method as synthesizer

_Model = TypeVar("_Model", bound=BaseModel)

_NO_SETTING = ("kind", "published")
"""Fields of the settings of a method that a constructor here does not take."""


class _Public(BaseModel):
    """What every constructor takes beside the schema, by type; its ranges are checked in use."""

    model_config = ConfigDict(strict=True, frozen=True)

    epsilon: float
    delta: float
    patient_column: str | None
    max_rows_per_patient: int
    patients: Annotated[int, Field(ge=1, le=10_000_000_000)] | None


class NotFittedError(ClustMixError, ValueError, AttributeError):
    """A model that has measured nothing yet was asked for what it would have measured.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> NaiveBayes(schema, epsilon=1.0, delta=1e-6).sample(5)
    Traceback (most recent call last):
    clustmix.estimator.NotFittedError: NOT_FITTED: expected a fitted model, ...
    """


class Estimator:
    """Settings of a method and of its guarantee; see `clustmix.synthesizer.Synthesizer`."""

    _entry: ClassVar[MethodEntry]
    guarantee_: Guarantee

    def __init__(
        self,
        schema: TableSchema,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        patient_column: str | None = None,
        max_rows_per_patient: int = 1,
        patients: int | None = None,
        **settings: Any,
    ) -> None:
        if not hasattr(self, "_entry"):
            raise TypeError("expected a class of a method, such as clustmix.ClustMix")
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.patient_column = patient_column
        self.max_rows_per_patient = max_rows_per_patient
        self.patients = patients
        defaults = settings_of(self._entry.config)
        for name in settings:
            if name not in defaults:
                raise TypeError(
                    f"{type(self).__name__}: expected a setting ({', '.join(defaults) or 'none'}), "
                    f"found {name!r}"
                )
        for name, default in defaults.items():
            setattr(self, name, settings.get(name, default))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as the constructor takes them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change settings of a model that is not fitted.

        Raises
        ------
        ValueError
            If there is no setting of this name.
        ConfigurationError
            If the model is fitted: its guarantee was drawn under the settings that it has.
        """
        self._require_unspent()
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"expected a setting ({', '.join(known)}), found {name!r}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "released_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __repr__(self) -> str:
        shown = {"epsilon": self.epsilon, "delta": self.delta}
        defaults = dict(inspect.signature(type(self)).parameters)
        for name, value in self.get_params().items():
            if name != "schema" and value != defaults[name].default:
                shown[name] = value
        text = f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"
        if not self.__sklearn_is_fitted__():
            return f"{text}, not fitted"
        charged = self.guarantee_.charged
        return f"{text}, fitted; {'nothing was charged' if charged is None else charged}"

    def _target(self) -> tuple[PrivacyParameters, Adjacency]:
        public = self._public()
        parameters = PrivacyParameters(epsilon=public.epsilon, delta=public.delta)
        try:
            return parameters, Adjacency(self.adjacency)
        except ValueError:
            pass
        names = " or ".join(adjacency.value for adjacency in Adjacency)
        raise ConfigurationError(
            "ADJACENCY_INVALID", f"expected adjacency {names}, found {self.adjacency!r}"
        )

    def _public(self) -> _Public:
        """Return what every constructor takes, checked; a number of numpy is one of Python."""
        given = {name: getattr(self, name) for name in _Public.model_fields}
        plain = {
            name: value.item() if hasattr(value, "item") else value for name, value in given.items()
        }
        return self._checked(_Public, plain)

    def _unit(self) -> PrivacyUnit:
        public = self._public()
        if self.patient_column in (*self.schema.released_columns, *self.schema.ignore):
            raise ConfigurationError(
                "PRIVACY_UNIT_INVALID",
                "expected a patient_column outside columns, label and ignore of the schema, found "
                f"{self.patient_column!r} in it; the patient is never released",
            )
        return PrivacyUnit(column=public.patient_column, max_rows=public.max_rows_per_patient)

    def _bound(self, settings: BaseModel | None = None) -> synthesizer.Synthesizer:
        """Return the method, with its own settings or those given, bound to the public domain."""
        from tasks.ingest.encoding import domain_of

        if not isinstance(self.schema, TableSchema):
            raise ConfigurationError(
                "SCHEMA_INVALID",
                f"expected a clustmix.Schema, found {type(self.schema).__name__}; "
                "Schema.from_yaml reads one",
            )
        domain, public = domain_of(self.schema), self._public()
        return build(
            self._settings() if settings is None else settings,
            replace(domain, rows_per_patient=public.max_rows_per_patient, patients=public.patients),
        )

    def _settings(self) -> BaseModel:
        """Return the settings of the method, checked."""
        config = self._entry.config
        return self._checked(config, {name: getattr(self, name) for name in settings_of(config)})

    def _checked(self, model: type[_Model], settings: dict[str, Any]) -> _Model:
        try:
            return model.model_validate(settings)
        except ValidationError as error:
            problem = one_line(error, settings)
        raise refusal("SETTING_INVALID", f"{type(self).__name__}: {problem}")

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                "NOT_FITTED",
                "expected a fitted model, found one that has measured nothing; call fit with a "
                "table first",
            )

    def _require_unspent(self) -> None:
        if self.__dict__.get("_spent", False):
            raise ConfigurationError(
                "FITTED",
                "expected a model that has measured nothing, found one that has; a second fit is a "
                "second charge to the same patients, so make a new model where that is meant "
                "(sklearn.base.clone)",
            )


def settings_of(config: type[BaseModel]) -> dict[str, Any]:
    """Return the settings of a method that a constructor takes, with their defaults."""
    return {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in config.model_fields.items()
        if name not in _NO_SETTING
    }
