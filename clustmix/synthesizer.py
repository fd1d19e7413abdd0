"""A method as an estimator: settings in the constructor, `fit` measures once, `sample` is free.

A hospital's flow calls the same functions: the plan is calibrated from public settings alone, rows
are checked, encoded and bounded patient by patient, noise of the operating system is drawn once on
exact sums, and rows are sampled from the released arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from clustmix.estimator_parameters import Parameters
from clustmix.schema import Schema
from clustmix.target import Fitted, NotFittedError, row_count
from privacy.charges import unit_in_words
from privacy.errors import refusals
from storage.schema.columns import raw_text
from storage.schema.event_tables import PATIENTS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from clustmix.charging import Payment
    from clustmix.guarantee import Charged, Guarantee, Plan
    from privacy.events import Event
    from privacy.mechanisms import NoisyStatistic
    from storage.ledger.ledger_db import LedgerDatabase

refusal = refusals(__package__, NotFittedError)


@dataclass(eq=False, repr=False, kw_only=True)
class Synthesizer(Parameters):
    """Base of all methods; make one of its classes, such as `clustmix.ClustMix`.

    Parameters
    ----------
    schema : Schema
        The declared table.
    epsilon : float, above 0
        Bound on the privacy loss of a patient; 1.0 is usual.
    delta : float, above 0 and below 0.001
        Additive term beside the factor e^epsilon: a public constant, such as 1e-6.
    adjacency : {"add_remove", "replace_one"}, default "add_remove"
        Neighbouring tables: with one patient more, or with one exchanged for another.
    patient_column : str, optional
        Column that names the patient; without it every row is another patient.
    max_rows_per_patient : int, at least 1, default 1
        Rows of one patient that are used.
    patients : int, from 1 to 10,000,000,000, optional
        Rounded, public number of patients, for the split of the budget and the rows of `sample`.
    parts : int, from 1 to 1000, default 1
        Measurements that a pool will add up, this one included, for the split of the budget.

    Notes
    -----
    A release of the hospital flow adds a second check of the input rows, a gate that compares the
    synthetic rows with the measurement, the approval of an officer and a signature.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fitted: Fitted | None = None

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of the draws as they happened (NotFittedError before `fit`)."""
        return self._measured().guarantee

    @property
    def released_(self) -> dict[str, NDArray[Any]]:
        """Every released array by name, the input of `sample` (NotFittedError before `fit`)."""
        return self._measured().released

    def plan(self) -> Plan:
        """Return the statistics that `fit` will measure, with their noise. Nothing is read."""
        from clustmix.guarantee import Plan
        from tasks.measurement.method import checked_plan

        target = self._target()
        plan = checked_plan(self._bound(), parameters=target.parameters, adjacency=target.adjacency)
        return Plan(measurement=plan, guarantee=self._guarantee(plan.event.events))

    def fit(
        self,
        frame: Any,
        *,
        events: Mapping[str, Any] | None = None,
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
        events
            Such a table by the name of each declared table of events.
        ledger
            Ledger that is charged before a row is read; a table that is refused is given back what
            it was charged. A file of SQLite, made where there is none, or the ``postgresql://``
            address of one. None charges nothing, and every output states that.
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
        draws are those of `plan`, or nothing is released. A measurement that is lost before `save`
        is lost: to draw it again is a second charge.

        The guarantee begins at the rows of the frame. Computation over other rows that made one of
        them (an imputed or scaled value, a type that a null elsewhere has changed, the choice of
        rows) is not covered.
        """
        from clustmix.charging import charging

        self._require_unspent()
        paying = partial(charging, ledger, cohort=cohort, lifetime_epsilon=lifetime_epsilon)
        self._fitted = self._measurement(frame, events or {}, paying)
        return self

    def sample(
        self, n: SupportsIndex | None = None, *, where: Mapping[str, object] | None = None
    ) -> Any:
        """Sample synthetic rows. Free, as often as wanted: no row is read and no noise is drawn.

        Parameters
        ----------
        n
            Number of rows, at most 10,000,000 at once. If left out, as many as patients were
            declared in the constructor, never the number of rows that were measured.
        where
            Level by column, for columns with levels and labels, or ``LOW..HIGH`` of whole bins of
            numbers: only such rows. ``balanced`` for as many rows of each level of a label.

        Returns
        -------
        DataFrame
            Features in the order of the schema, then the labels: a DataFrame of polars or a Table
            of pyarrow where one was measured, else, and of a loaded model, a pandas DataFrame. The
            guarantee stands in ``attrs["guarantee"]`` of pandas, which keeps it in a Parquet file,
            and in the metadata of a schema of Arrow. With tables of events a dictionary: of
            ``patients``, with a synthetic key, and of each table by its name, in order of time.

        Raises
        ------
        NotFittedError
            If the model has measured nothing yet.
        ConfigurationError
            If `n` is out of its range or neither given nor declared, a condition names no declared
            level, or hardly any row meets the conditions.
        """
        from clustmix.frames import as_of
        from privacy.randomness import system_generator
        from tasks.histories.event_frames import sampled_tables

        fitted, schema = self._measured(), self.schema
        n_rows = row_count(n, declared=self._declared_rows())
        if not hasattr(where or {}, "items"):
            raise refusal("CONDITION_INVALID", kind=where.__class__.__name__)
        conditions = {column: raw_text(level) for column, level in (where or {}).items()}
        tables = sampled_tables(
            *(fitted.method, fitted.released, conditions),
            schema=schema,
            tables=schema.events,
            key=self.patient_column or "",
            n_rows=n_rows,
            rng=system_generator(),
        )
        notice = fitted.guarantee.statement
        found = {name: as_of(one, fitted.library, notice=notice) for name, one in tables.items()}
        return found if schema.events else found[PATIENTS]

    def distill(self, points: SupportsIndex = 500) -> pd.DataFrame | Any:
        """Distil 20,000 synthetic rows to few points, 10 to 2,000, with soft labels. Free.

        They replace the rows in the training of a model of the label. Each column is a condition on
        a row, stated by its name; the last ones are soft labels. Needs the extra ``distill``.
        """
        from clustmix.frames import as_of
        from privacy.randomness import system_generator
        from tasks.distillation.distilled_rows import LABEL_ROWS, distilled
        from tasks.ingest.conditional_rows import sample_rows

        fitted, n_points = self._measured(), row_count(points, declared=None)
        if not 10 <= n_points <= 2_000:
            raise refusal("POINTS_INVALID", n_points=n_points)
        rng, own = system_generator(), (fitted.method, self.schema, fitted.released)
        rows = sample_rows(*own, {}, rng=rng, n_rows=LABEL_ROWS)
        frame = distilled(rows, self.schema, n_points)
        return as_of(frame, fitted.library, notice=fitted.guarantee.statement)

    def save(self, path: str | Path) -> None:
        """Write the measurement to a new file, from which `load` samples at no cost.

        The file holds the released arrays, their guarantee, and whether it was charged. Its SHA-256
        is the digest in the ledger. It is a ConfigurationError if there is a file of this name, as
        a measurement is never replaced, or none can be made there.
        """
        from clustmix.saved import write_new

        write_new(Path(path), self._measured().file)

    def draws(self, m: int = 20) -> list[Self]:
        """Return `m` fitted models of the sealed sums, each with further noise of that size. Free.

        An estimate varies over them as over other draws of the noise. The method is ClustMix on a
        table or naive Bayes (ConfigurationError), of the version that measured (IntegrityError).
        """
        from clustmix.pools import draws

        return draws(self, m)

    @classmethod
    def load(cls, path: str | Path) -> Synthesizer:
        """Read a file that `save` has written, and return the fitted model.

        It is an IntegrityError if the file is missing or damaged, or its parts do not agree, and a
        ConfigurationError if it is of another method; `clustmix.Synthesizer` loads any.
        """
        import pandas as pd

        from clustmix import saved
        from clustmix.methods import METHODS

        content, record, released = saved.read(Path(path))
        own = ("sum_", "stddev_")
        sums = {name: released.pop(name) for name in list(released) if name.startswith(own)}
        [made] = [one for one in METHODS if one.kind == record.method.name]
        if not issubclass(made, cls):
            raise refusal("OTHER_METHOD", wanted=cls.__name__, found=made.__name__)
        recorded = {
            **dict(record),
            **dict(record.settings),
            "schema": Schema.model_validate(record.table_schema),
            "adjacency": record.adjacency.value,
        }
        model = made(**{one.name: recorded[one.name] for one in fields(made)})
        model._spent = True
        model._fitted = Fitted(
            method=model._bound(),
            released=released,
            sums=sums,
            guarantee=model._guarantee(
                record.drawn, charged=record.charged, tainted=record.tainted
            ),
            file=content,
            library=pd.DataFrame,
        )
        return model

    def _measurement(
        self,
        frame: Any,
        events: Mapping[str, Any],
        paying: Callable[..., AbstractContextManager[Payment]],
    ) -> Fitted:
        from clustmix import saved
        from clustmix.frames import declared_tables, library_of, rows_of
        from privacy.randomness import OperatingSystemNoise
        from tasks.histories.event_frames import coded_tables
        from tasks.measurement.curator import Curator
        from tasks.measurement.method import checked_plan, measure
        from tasks.measurement.pooled_sums import sums_of

        target, method, schema = self._target(), self._bound(), self.schema
        plan = checked_plan(method, parameters=target.parameters, adjacency=target.adjacency)
        tables = declared_tables(frame, events, schema, self.patient_column)
        with paying(target=target) as payment:
            frames = {name: rows_of(table) for name, table in tables.items()}
            shards, beside = coded_tables(frames, schema, schema.events, method, unit=target.unit)
            payment.begin()
            self._spent = True
            sealed: dict[str, NoisyStatistic] = {}
            curator = Curator(
                plan=plan,
                shards=shards,
                noise_source=OperatingSystemNoise(),
                seal=sealed.__setitem__,
                beside=beside,
            )
            released = measure(method, curator)
            guarantee = self._guarantee(
                curator.event.events, charged=payment.charged, tainted=curator.tainted
            )
            drawn = sealed if hasattr(method, "pooled") or schema.events else {}
            sums = sums_of(plan, {name: one.values for name, one in drawn.items()})  # noqa: PD011
            file = saved.written(self, guarantee, {**released, **sums})
            payment.seal(file)
        return Fitted(
            method=method,
            released=released,
            sums=sums,
            guarantee=guarantee,
            file=file,
            library=library_of(frame),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._shown().items())
        state = "not fitted"
        if self._fitted is not None:
            state = f"fitted; {self._fitted.guarantee.charged or 'nothing was charged'}"
        return f"{self.__class__.__name__}({shown}), {state}"

    def _repr_html_(self) -> str:
        import pandas as pd

        state, words = ("not fitted", "")
        if self._fitted is not None:
            state, words = "fitted", self._fitted.guarantee.statement
        settings = pd.DataFrame({name: [repr(value)] for name, value in self._shown().items()})
        table = settings.to_html(index=False, border=0)
        return f"<strong>{self.__class__.__name__}, {state}</strong>{table}<p>{escape(words)}</p>"

    def _guarantee(
        self, events: Sequence[Event], *, charged: Charged | None = None, tainted: bool = False
    ) -> Guarantee:
        from clustmix.guarantee import Guarantee

        target, tables = self._target(), self.schema.events
        names = " and ".join(table.name for table in tables)
        more = [f"with that patient's rows of {names}"] if names else []
        n_events = sum(table.max_rows_per_patient for table in tables)
        return Guarantee(
            events=tuple(events),
            delta=target.delta,
            adjacency=target.adjacency,
            privacy_unit=", ".join([unit_in_words(target.unit), *more]),
            max_rows_per_patient=target.max_rows_per_patient + n_events,
            charged=charged,
            tainted=tainted,
        )

    def _measured(self) -> Fitted:
        if self._fitted is None:
            raise refusal("NOT_FITTED")
        return self._fitted
