"""A method as an estimator: settings in the constructor, `fit` measures once, `sample` is free.

The habits are those of scikit-learn. What is done is what the flow does, by the same functions:
the plan is calibrated from public settings alone, rows are checked, encoded and bounded patient by
patient, noise of the operating system is drawn once on exact sums, and rows are sampled from what
was released.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ValidationError

from clustmix.schema import Schema
from privacy.charges import unit_in_words
from privacy.errors import ClustMixError, ConfigurationError
from privacy.event_records import event_to_dict
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.schema.columns import raw_text
from storage.schema.plain_yaml import one_line, refusal
from storage.schema.table import TableSchema
from tasks.synthesizers.registry import MethodEntry, build, method_entry

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from clustmix.guarantee import Guarantee, Plan
    from storage.ledger.ledger_db import LedgerDatabase
    from tasks.measurement import synthesizer

_NO_SETTING = ("kind", "published")
"""Fields of the settings of a method that a constructor here does not take."""


class NotFittedError(ClustMixError, ValueError, AttributeError):
    """A model that has measured nothing yet was asked for what it would have measured.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> NaiveBayes(schema, epsilon=1.0, delta=1e-6).sample(5)
    Traceback (most recent call last):
    clustmix.synthesizer.NotFittedError: NOT_FITTED: expected a fitted model, ...
    """


class Synthesizer:
    """What every method has in common; make one of its classes, such as `clustmix.ClustMix`.

    Parameters
    ----------
    schema
        The declared table.
    epsilon, delta
        The guarantee, see `privacy.parameters.PrivacyParameters`.
    adjacency
        ``add_remove`` or ``replace_one``: which two tables count as neighbours.
    patient_column
        Column that names the patient; None declares that every row is another patient.
    max_rows_per_patient
        Rows of one patient that are used.
    **settings
        Settings of the method.

    Attributes
    ----------
    guarantee_ : Guarantee
        What was really drawn, and what it guarantees.
    released_ : dict of str to array
        Everything that was released: the input of the sampler.

    Examples
    --------
    >>> import pandas as pd
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> frame = pd.DataFrame({"tea": [0, 1] * 500, "y": ["no", "yes"] * 500})
    >>> model = NaiveBayes(schema, epsilon=1.0, delta=1e-6).fit(frame)
    >>> model.sample(3, where={"y": "yes"})["y"].tolist()
    ['yes', 'yes', 'yes']
    >>> model
    NaiveBayes(epsilon=1.0, delta=1e-06), fitted; nothing was charged
    """

    _entry: ClassVar[MethodEntry]

    def __init__(
        self,
        schema: TableSchema,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        patient_column: str | None = None,
        max_rows_per_patient: int = 1,
        **settings: Any,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.patient_column = patient_column
        self.max_rows_per_patient = max_rows_per_patient
        defaults = _defaults(self._entry.config)
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

    def plan(self) -> Plan:
        """Return what `fit` will measure, with which noise. Nothing is read.

        Raises
        ------
        ConfigurationError
            If a setting is out of its range, or does not fit the table or the guarantee.
        """
        from clustmix.guarantee import Guarantee, Plan
        from tasks.measurement.synthesizer import checked_plan

        parameters, adjacency = self._target()
        plan = checked_plan(self._bound(), parameters=parameters, adjacency=adjacency)
        return Plan(
            measurement=plan,
            guarantee=Guarantee.of(
                plan.event.events,
                delta=self.delta,
                adjacency=adjacency,
                privacy_unit=unit_in_words(self._unit()),
                max_rows_per_patient=self.max_rows_per_patient,
            ),
        )

    def fit(
        self,
        frame: Any,
        *,
        ledger: LedgerDatabase | Path | str | None = None,
        cohort: str | None = None,
        lifetime_epsilon: float | None = None,
    ) -> Self:
        """Measure a table once, under differential privacy.

        Parameters
        ----------
        frame
            A pandas DataFrame, or a table that speaks the Arrow PyCapsule interface (polars,
            pyarrow) or the dataframe interchange protocol. Its columns are the declared ones.
        ledger
            Ledger that is charged before a row is read: a file of SQLite, made where there is
            none, or the ``postgresql://`` address of one. None charges nothing, and everything
            that is made says so.
        cohort
            The patients who pay; given if and only if a ledger is.
        lifetime_epsilon
            Cap of the cohort over all time, at this delta; needed for its first charge. The
            smallest cap that the ledger was ever given holds.

        Raises
        ------
        ConfigurationError
            If a setting is out of its range, or the model has measured before.
        InputError
            If the table does not keep what the schema declares. Names columns and rules. What was
            charged stays charged, as rows were read.
        BudgetRefused
            If the charge does not fit under a cap.

        Privacy
        -------
        Noise is drawn once, with randomness of the operating system, on exact integer sums; the
        draws are those of `plan`, or nothing is released. What is lost before `save` is lost: to
        draw it again is a second charge.
        """
        from clustmix import saved
        from clustmix.charging import charging
        from clustmix.frames import declared_rows
        from tasks.ingest.patient_rows import encoded_shards
        from tasks.measurement.curator import Curator, InProcessCompute
        from tasks.measurement.randomness import randomness_of_run
        from tasks.measurement.synthesizer import measure

        self._require_unspent()
        plan, bound, unit = self.plan(), self._bound(), self._unit()
        rows = declared_rows(frame, self.schema, self.patient_column)
        parameters, adjacency = self._target()
        with charging(
            ledger,
            cohort=cohort,
            lifetime_epsilon=lifetime_epsilon,
            parameters=parameters,
            adjacency=adjacency,
            unit=unit,
        ) as payment:
            self._spent = payment.charged is not None
            curator = Curator(
                plan=plan.measurement,
                compute=InProcessCompute(encoded_shards(rows, self.schema, unit)),
                noise_source=randomness_of_run().noise_source,
            )
            self._spent = True
            released = measure(bound, curator, mu=plan.measurement.mu)
            guarantee = plan.guarantee.drawn(
                curator.event.events, charged=payment.charged, tainted=curator.tainted
            )
            self._file = saved.written(self._as_saved(guarantee), released)
            payment.seal(self._file)
        self.released_: dict[str, NDArray[Any]] = released
        self.guarantee_: Guarantee = guarantee
        return self

    def sample(self, n: int, *, where: Mapping[str, object] | None = None) -> pd.DataFrame:
        """Sample synthetic rows. Free, as often as wanted: no row is read and no noise is drawn.

        Parameters
        ----------
        n
            Number of rows.
        where
            Level by column, for columns with levels and the label: only rows with these levels,
            by rejection.

        Returns
        -------
        DataFrame
            Features in the order of the schema, then the label. ``attrs["guarantee"]`` says what
            is guaranteed and whether it was charged; pandas keeps it in a Parquet file.

        Raises
        ------
        NotFittedError
            If the model has measured nothing yet.
        ConfigurationError
            If a condition names no declared level, or hardly any row meets the conditions.
        """
        from tasks.ingest.conditions import sample_rows
        from tasks.ingest.encoding import decode
        from tasks.measurement.randomness import randomness_of_run

        self._require_fitted()
        if n < 1:
            raise ConfigurationError("ROWS_INVALID", f"expected n of at least 1, found {n!r}")
        rng = randomness_of_run().sampling
        conditions = {column: raw_text(level) for column, level in (where or {}).items()}
        rows = sample_rows(self._bound(), self.schema, self.released_, rng, conditions, n_rows=n)
        frame = decode(rows.codes, rows.label, self.schema, rng=rng)
        frame.attrs["guarantee"] = self.guarantee_.statement
        return frame

    def save(self, path: str | Path) -> None:
        """Write the measurement to a new file, from which `load` samples at no cost.

        The file holds what the noise has made public, and says what it guarantees and whether it
        was charged. Its SHA-256 is the digest in the ledger.

        Raises
        ------
        NotFittedError
            If the model has measured nothing yet.
        ConfigurationError
            If there is a file of this name: a measurement is never replaced.
        """
        self._require_fitted()
        try:
            with Path(path).open("xb") as file:
                file.write(self._file)
        except FileExistsError:
            pass
        else:
            return
        raise ConfigurationError(
            "FILE_EXISTS", f"expected no file at {path}, found one; name another"
        )

    @classmethod
    def load(cls, path: str | Path) -> Synthesizer:
        """Read a file that `save` has written, and return the fitted model.

        Raises
        ------
        IntegrityError
            If the file is missing, damaged, or not what it says.
        ConfigurationError
            If it is of another method than this class; `clustmix.Synthesizer` loads any.
        """
        from clustmix import saved

        content, record, released = saved.read(Path(path))
        entry = method_entry(record.method.name)
        made = class_of(entry)
        if not issubclass(made, cls):
            raise ConfigurationError(
                "OTHER_METHOD",
                f"expected a model of {cls.__name__}, found one of {entry.class_name}; load it as "
                "that",
            )
        model = made(
            Schema.model_validate(record.table_schema),
            epsilon=record.epsilon,
            delta=record.delta,
            adjacency=record.adjacency,
            patient_column=record.patient_column,
            max_rows_per_patient=record.max_rows_per_patient,
            **{name: getattr(record.settings, name) for name in _defaults(entry.config)},
        )
        model._spent = True
        model._file = content
        model.released_ = released
        model.guarantee_ = model.plan().guarantee.drawn(
            record.drawn, charged=record.charged, tainted=record.tainted
        )
        return model

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
        parameters = PrivacyParameters(epsilon=self.epsilon, delta=self.delta)
        try:
            return parameters, Adjacency(self.adjacency)
        except ValueError:
            pass
        names = " or ".join(adjacency.value for adjacency in Adjacency)
        raise ConfigurationError(
            "ADJACENCY_INVALID", f"expected adjacency {names}, found {self.adjacency!r}"
        )

    def _unit(self) -> PrivacyUnit:
        if self.patient_column in (*self.schema.released_columns, *self.schema.ignore):
            raise ConfigurationError(
                "PRIVACY_UNIT_INVALID",
                "expected a patient_column outside columns, label and ignore of the schema, found "
                f"{self.patient_column!r} in it; the patient is never released",
            )
        return PrivacyUnit(column=self.patient_column, max_rows=self.max_rows_per_patient)

    def _bound(self) -> synthesizer.Synthesizer:
        """Return the method, bound to the public domain."""
        from tasks.ingest.encoding import domain_of

        if not isinstance(self.schema, TableSchema):
            raise ConfigurationError(
                "SCHEMA_INVALID",
                f"expected a clustmix.Schema, found {type(self.schema).__name__}; "
                "Schema.from_yaml reads one",
            )
        return build(self._settings(), domain_of(self.schema))

    def _settings(self) -> BaseModel:
        """Return the settings of the method, checked."""
        config = self._entry.config
        settings = {name: getattr(self, name) for name in _defaults(config)}
        try:
            return config.model_validate(settings)
        except ValidationError as error:
            problem = one_line(error, settings)
        raise refusal("SETTING_INVALID", f"{type(self).__name__}: {problem}")

    def _as_saved(self, guarantee: Guarantee) -> dict[str, Any]:
        """Return what a file says of this model."""
        return {
            "notice": guarantee.statement,
            "method": {
                "name": self._entry.kind,
                "settings": self._settings().model_dump(mode="json", exclude={"kind"}),
            },
            "table_schema": self.schema.model_dump(mode="json"),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": guarantee.adjacency,
            "patient_column": self.patient_column,
            "max_rows_per_patient": self.max_rows_per_patient,
            "events": tuple(event_to_dict(event) for event in guarantee.events),
            "charged": guarantee.charged,
            "tainted": guarantee.tainted,
        }

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


def _defaults(config: type[BaseModel]) -> dict[str, Any]:
    """Return the settings of a method that a constructor takes, with their defaults."""
    return {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in config.model_fields.items()
        if name not in _NO_SETTING
    }


@cache
def class_of(entry: MethodEntry) -> type[Synthesizer]:
    """Make the class of a registered method: its signature and its words come from the entry."""
    made = type(
        entry.class_name,
        (Synthesizer,),
        {"_entry": entry, "__module__": "clustmix", "__doc__": _documentation(entry)},
    )
    common = [
        parameter
        for parameter in inspect.signature(Synthesizer).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in _defaults(entry.config).items()
    ]
    made.__signature__ = inspect.Signature([*common, *settings])  # type: ignore[attr-defined]
    return made


def _first_line(of: object) -> str:
    return inspect.cleandoc(of.__doc__ or "").partition("\n")[0]


def _documentation(entry: MethodEntry) -> str:
    """Say what a method is, what it takes and how it is used, from its entry and settings."""
    common = inspect.cleandoc(Synthesizer.__doc__ or "").split("**settings")[0]
    parameters = common.split("----------\n", 1)[1].rstrip()
    settings = "".join(
        f"\n{name}\n    {field.description or _first_line(field.annotation)}"
        for name, field in entry.config.model_fields.items()
        if name not in _NO_SETTING
    )
    return f"""{entry.title}, with a proof that covers every step that reads a row.

Source: {entry.source}.

Parameters
----------
{parameters}{settings}

Attributes
----------
guarantee_ : Guarantee
    What was really drawn, and what it guarantees.
released_ : dict of str to array
    Everything that was released: the input of the sampler.

Privacy
-------
`plan` says what is measured with which noise, before a row is read; `fit` draws it once.

Examples
--------
>>> from clustmix import {entry.class_name}, Schema
>>> schema = Schema(
...     items=("tea", "milk", "bread", "jam", "rice", "beans", "eggs", "salt"),
...     label={{"name": "again", "levels": {{"no": (), "yes": ()}}}},
... )
>>> model = {entry.class_name}(schema, epsilon=1.0, delta=1e-6)
>>> model.plan().guarantee.epsilon <= 1.0
True
>>> model
{entry.class_name}(epsilon=1.0, delta=1e-06), not fitted
"""
