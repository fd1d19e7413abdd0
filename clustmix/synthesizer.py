"""A method as an estimator: settings in the constructor, `fit` measures once, `sample` is free.

What is done is what the flow does, by the same functions: the plan is calibrated from public
settings alone, rows are checked, encoded and bounded patient by patient, noise of the operating
system is drawn once on exact sums, and rows are sampled from what was released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from clustmix.estimator import Estimator, settings_of
from clustmix.schema import Schema
from privacy.charges import unit_in_words
from privacy.errors import ConfigurationError
from privacy.event_records import event_to_dict
from storage.schema.columns import raw_text
from tasks.methods.registry import method_entry

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from clustmix.guarantee import Charged, Guarantee, Plan
    from privacy.events import Event
    from storage.ledger.ledger_db import LedgerDatabase

MAX_ROWS = 10_000_000
"""Most rows of one call of `Synthesizer.sample`, as of one release."""


class Synthesizer(Estimator):
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
    patients
        About how many patients there are: a public, rounded number, by which some methods split
        the budget.
    **settings
        Settings of the method.

    Attributes
    ----------
    guarantee_ : Guarantee
        What was really drawn, and what it guarantees.
    released_ : dict of str to array
        Everything that was released: the input of the sampler.

    Notes
    -----
    What a release of the flow has besides is not here: a second check of the rows that go in, the
    gate that holds synthetic rows against the measurement, an officer's approval, a signature.

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

    def plan(self) -> Plan:
        """Return what `fit` will measure, with which noise. Nothing is read.

        Raises
        ------
        ConfigurationError
            If a setting is out of its range, or does not fit the table or the guarantee.
        """
        from clustmix.guarantee import Plan
        from tasks.measurement.method import checked_plan

        parameters, adjacency = self._target()
        plan = checked_plan(self._bound(), parameters=parameters, adjacency=adjacency)
        return Plan(measurement=plan, guarantee=self._guarantee(plan.event.events))

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
            Ledger that is charged before a row is read; a table that is refused is given back what
            it was charged. A file of SQLite, made where there is none, or the ``postgresql://``
            address of one. None charges nothing, and everything that is made says so.
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
            If the table does not keep what the schema declares. Names columns and rules; nothing is
            charged.
        BudgetRefused
            If the charge does not fit under a cap.

        Privacy
        -------
        Noise is drawn once, with randomness of the operating system, on exact integer sums; the
        draws are those of `plan`, or nothing is released. What is lost before `save` is lost: to
        draw it again is a second charge.

        The guarantee begins at the rows of the frame. What was computed over other rows to make one
        of them (an imputed or scaled value, a type that a null elsewhere has changed, the choice of
        rows) is not covered.
        """
        from clustmix import saved
        from clustmix.charging import charging
        from clustmix.frames import declared_columns, rows_of
        from tasks.ingest.patient_rows import encoded_shards
        from tasks.measurement.curator import Curator, in_memory
        from tasks.measurement.method import checked_plan, measure
        from tasks.measurement.run_randomness import randomness_of_run

        self._require_unspent()
        parameters, adjacency = self._target()
        method, unit = self._bound(), self._unit()
        plan = checked_plan(method, parameters=parameters, adjacency=adjacency)
        table = declared_columns(frame, self.schema, self.patient_column)
        with charging(
            ledger,
            cohort=cohort,
            lifetime_epsilon=lifetime_epsilon,
            parameters=parameters,
            adjacency=adjacency,
            unit=unit,
        ) as payment:
            shards = in_memory(encoded_shards(rows_of(table), self.schema, unit))
            payment.begin()
            self._spent = True
            curator = Curator(
                plan=plan, shards=shards, noise_source=randomness_of_run().noise_source
            )
            released = measure(method, curator, mu=plan.mu)
            guarantee = self._guarantee(
                curator.event.events, charged=payment.charged, tainted=curator.tainted
            )
            self._file = saved.written(self._as_saved(guarantee), released)
            payment.seal(self._file)
        self._method = method
        self.released_: dict[str, NDArray[Any]] = released
        self.guarantee_ = guarantee
        return self

    def sample(
        self, n: SupportsIndex, *, where: Mapping[str, object] | None = None
    ) -> pd.DataFrame:
        """Sample synthetic rows. Free, as often as wanted: no row is read and no noise is drawn.

        Parameters
        ----------
        n
            Number of rows, at most 10,000,000 at once.
        where
            Level by column, for columns with levels and labels, or ``LOW..HIGH`` of whole bins of
            numbers: only such rows. ``balanced`` for as many rows of each level of a label.

        Returns
        -------
        DataFrame
            Features in the order of the schema, then the labels. ``attrs["guarantee"]`` says what
            is guaranteed and whether it was charged; pandas keeps it in a Parquet file.

        Raises
        ------
        NotFittedError
            If the model has measured nothing yet.
        ConfigurationError
            If `n` is out of its range, a condition names no declared level, or hardly any row meets
            the conditions.
        """
        from tasks.ingest.conditional_rows import sample_rows
        from tasks.ingest.encoding import decode
        from tasks.measurement.run_randomness import randomness_of_run

        self._require_fitted()
        n_rows = index(n) if hasattr(n, "__index__") else 0
        if not 1 <= n_rows <= MAX_ROWS:
            raise ConfigurationError(
                "ROWS_INVALID", f"expected a whole number n from 1 to {MAX_ROWS:,}, found {n!r}"
            )
        if not hasattr(where or {}, "items"):
            raise ConfigurationError(
                "CONDITION_INVALID",
                f"expected where as a mapping of column to level, found {type(where).__name__}",
            )
        rng = randomness_of_run().sampling
        conditions = {column: raw_text(level) for column, level in (where or {}).items()}
        rows = sample_rows(
            self._method, self.schema, self.released_, rng, conditions, n_rows=n_rows
        )
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
            If there is a file of this name, as a measurement is never replaced, or none can be made
            there.
        """
        self._require_fitted()
        try:
            with Path(path).open("xb") as file:
                file.write(self._file)
        except FileExistsError:
            raise ConfigurationError(
                "FILE_EXISTS", f"expected no file at {path}, found one; name another"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                "FILE_NOT_MADE",
                f"expected a place for a new file at {path}, found none: {error.strerror}",
            ) from None

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
        from clustmix.methods import class_of

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
            patients=record.patients,
            **{name: getattr(record.settings, name) for name in settings_of(entry.config)},
        )
        model._spent = True
        model._file = content
        # With settings that a constructor may not take any more.
        model._method = model._bound(record.settings)
        model.released_ = released
        model.guarantee_ = model._guarantee(
            record.drawn, charged=record.charged, tainted=record.tainted
        )
        return model

    def _guarantee(
        self, events: Sequence[Event], *, charged: Charged | None = None, tainted: bool = False
    ) -> Guarantee:
        from clustmix.guarantee import Guarantee

        return Guarantee.of(
            events,
            delta=self._public().delta,
            adjacency=self._target()[1],
            privacy_unit=unit_in_words(self._unit()),
            max_rows_per_patient=self._public().max_rows_per_patient,
            charged=charged,
            tainted=tainted,
        )

    def _as_saved(self, guarantee: Guarantee) -> dict[str, Any]:
        """Return what a file says of this model."""
        return {
            "notice": guarantee.statement,
            "method": {
                "name": self._entry.kind,
                "settings": self._settings().model_dump(mode="json", exclude={"kind"}),
            },
            "table_schema": self.schema.model_dump(mode="json"),
            **self._public().model_dump(),
            "adjacency": guarantee.adjacency,
            "events": tuple(event_to_dict(event) for event in guarantee.events),
            "charged": guarantee.charged,
            "tainted": guarantee.tainted,
        }
