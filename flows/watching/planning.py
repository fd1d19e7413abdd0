"""Expected errors of a release at several budgets, from declarations alone: no row is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters
from storage.schema.columns import in_short
from storage.schema.table import TableSchema
from tasks.measurement.centred import centred_norm, count_factor
from tasks.measurement.measurement_plan import MeasurementPlan, PlannedStatistic
from tasks.measurement.method import Synthesizer, checked_plan
from tasks.methods.clustmix.tables.table_rule import declared_patients
from tasks.methods.registry import method_entry
from tasks.reporting.released_tables import DEVIATIONS
from tasks.steps.job import ReleaseJob

if TYPE_CHECKING:
    from flows.watching.simulation import Utility

EPSILONS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PLOT_FORMATS = (".svg", ".pdf", ".png")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """Expected errors of a release at one epsilon.

    `releases` is the number that the cohort's lifetime budget allows if nothing is spent. Errors
    are half-widths of 95 % intervals by noise alone, in patients, for the size of a label and for
    one code; None where the method does not count them. Noise hides a code with fewer patients than
    the error. `drowned` are the columns whose codes it would hide at equal frequency.
    """

    epsilon: float
    rho: Decimal
    releases: int
    label_error: float | None = None
    code_error: float | None = None
    drowned: tuple[str, ...] = ()


class Planning:
    """Expected errors of releases of a job, by its declarations."""

    def __init__(self, job: ReleaseJob) -> None:
        self._job = job

    @property
    def schema(self) -> TableSchema:
        """The declared schema, without constraints and derived columns."""
        return self._job.table_schema.model_copy(update={"constraints": (), "derived": {}})

    @property
    def derived(self) -> str:
        """The columns that cost nothing, and the sums that would cost nothing if derived."""
        schema = self._job.table_schema
        texts = [f"{name}, {rule.title}, costs nothing" for name, rule in schema.derived.items()]
        for one in schema.constraints:
            sums = [total for _, sign, total in one.relations if sign == "="]
            texts += [f"{total} would cost nothing if derived, as {one.title}" for total in sums]
        return "; ".join(texts)

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self._job.ref.dataset

    def method(self, epsilon: float, patients: int) -> tuple[Synthesizer, float]:
        """Return the method for this many patients of one row each, and its mu.

        For fewer patients than declared, mu grows in proportion: noise changes a share as much.
        """
        job = replace(
            self._job,
            table_schema=self.schema,
            patients=patients,
            events=(),
            unit=replace(self._job.unit, max_rows=1),
            parameters=PrivacyParameters(epsilon=epsilon, delta=self._job.parameters.delta),
        )
        share = 1.0 - sum(part for part, _ in self.tables.values())
        return job.synthesizer, job.mu * share**0.5 * self.patients / patients

    @property
    def tables(self) -> dict[str, tuple[float, float]]:
        """Part of the squared budget of each table of events, and the error of a share.

        The error is the half-width of a 95 % interval by noise alone, if every patient has events.
        """
        release, mu, found = self._job.synthesizer, self._job.mu, dict[str, tuple[float, float]]()
        for name, own in getattr(release, "tables_at", lambda mu: {})(mu).items():
            unit = own.choice.norm / np.max(own.choice.one_way) / self.patients
            error = DEVIATIONS * own.plan[own.name].unit_noise_stddev * unit
            found[name] = ((own.mu / mu) ** 2, float(error))
        return found

    @property
    def patients(self) -> int:
        """The declared number of patients, or the assumed one."""
        return int(declared_patients(self._job.patients))

    def prospects(self, epsilons: Iterable[float] = EPSILONS) -> tuple[Prospect, ...]:
        """Return the expected errors at each epsilon, and at the declared one, in order.

        It is a ConfigurationError if the method cannot keep a guarantee of that epsilon.
        """
        asked = sorted({*epsilons, self._job.parameters.epsilon})
        return tuple(self._prospect(epsilon) for epsilon in asked)

    def _prospect(self, epsilon: float) -> Prospect:
        parameters = PrivacyParameters(epsilon=epsilon, delta=self._job.parameters.delta)
        job: Any = replace(self._job, parameters=parameters)
        rho, columns = job.charge_rho, job.table_schema.columns
        found = Prospect(epsilon=epsilon, rho=rho, releases=int(job.caps.lifetime_rho // rho))
        plan = checked_plan(job.synthesizer, parameters=parameters, adjacency=job.adjacency)
        planned = self._counts(plan)
        if planned is None:
            return found
        n_codes = getattr(job.synthesizer, "of_patients", job.synthesizer).domain.n_codes
        # One more column may hold the number of rows of a patient.
        hidden = planned.shape[1] - 1 - sum(n_codes)
        measured = n_codes + (hidden,) * (hidden > 0)
        one = DEVIATIONS * planned.unit_noise_stddev * centred_norm(measured)
        code_error = one * math.sqrt(planned.shape[0])
        of_label = math.sqrt(planned.shape[0] / len(job.table_schema.first_label.level_names))
        return replace(
            found,
            label_error=one * of_label / count_factor(measured),
            code_error=code_error,
            drowned=tuple(
                column.name for column in columns if self.patients / column.n_codes < code_error
            ),
        )

    def verdict(self, prospects: Sequence[Prospect]) -> str:
        """Return in words the columns that exceed noise at the declared epsilon, and advice."""
        columns, epsilon = self._job.table_schema.columns, self._job.parameters.epsilon
        asked = next(each for each in prospects if each.epsilon == epsilon)
        if asked.code_error is None:
            return f"none: method {self._job.method.kind} counts no bins or levels"
        n, drowned = len(columns), asked.drowned
        text = f"at epsilon {epsilon:g} this table carries {n - len(drowned)} of {n} columns"
        room = (
            f"noise leaves room for {int(self.patients / asked.code_error)} bins or levels in one"
        )
        widest = sorted(columns, key=lambda column: -column.n_codes)
        if not drowned:
            return f"{text}; {room}, and {widest[0].name}, the widest, has {widest[0].n_codes}"
        names = in_short([f"{one.name} ({one.n_codes})" for one in widest if one.name in drowned])
        within = [each for each in prospects if each.epsilon > epsilon and each.releases]
        more = next((each for each in within if len(each.drowned) < len(drowned)), None)
        raised = "" if more is None else f" ({more.epsilon:g}: {n - len(more.drowned)} of {n})"
        needed = f"{float(f'{widest[0].n_codes * asked.code_error:.2g}'):,.0f}"
        return (
            f"{text}; {room}, and these have more: {names}. Merge their bins or levels, leave them "
            f"out, raise epsilon{raised}, or have more patients (about {needed} for all)"
        )

    def levels(self, prospects: Sequence[Prospect]) -> str | None:
        """Return in words the label levels that noise hides at the declared epsilon.

        None without counts of levels. All levels are named if noise hides them at equal frequency.
        """
        label, epsilon = self._job.table_schema.first_label, self._job.parameters.epsilon
        error = next(each for each in prospects if each.epsilon == epsilon).label_error
        if error is None:
            return None
        text = (
            f"noise hides a level of {label.name} of fewer than about "
            f"{float(f'{error:.2g}'):,.0f} patients, and what these have in common"
        )
        if error <= self.patients / len(label.level_names):
            return text
        return f"{text}: if all are as frequent, {in_short(list(label.level_names))}"

    @property
    def pairs(self) -> str | None:
        """The pairs of columns without a table of their own at the declared epsilon."""
        method, mu = self.method(self._job.parameters.epsilon, self.patients)
        names = [column.name for column in self.schema.columns]
        found = getattr(method, "pairs_without_a_table", lambda mu: ())(mu=mu)
        listed = in_short([f"{names[one]} with {names[other]}" for one, other in found])
        return f"not measured, if codes are equally frequent: {listed}" if listed else None

    def _counts(self, plan: MeasurementPlan) -> PlannedStatistic | None:
        """Return the planned counts of codes by label, or None of a method that makes none."""
        names = method_entry(self._job.method.kind).histograms
        planned = [one for one in plan.statistics if isinstance(one, PlannedStatistic)]
        return next((one for one in planned if one.name in names and len(one.shape) == 2), None)


def require_format(path: Path) -> None:
    """Refuse (ConfigurationError) a file that no drawing is written to."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise ConfigurationError(
            "PLOT_FORMAT", f"expected a file ending in {' or '.join(PLOT_FORMATS)}, found {path}"
        )


def draw_prospects(
    found: Sequence[Prospect], n_patients: int, path: Path, tried: Mapping[float, Utility]
) -> None:
    """Draw the errors over epsilon, in percent of the patients, and the number of releases.

    Tried releases come first: the area under the curve of a model of one, and of the rows.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    figure = Figure(figsize=(7.0 + 3.5 * bool(tried), 3.6), layout="constrained")
    *utility, errors, releases = figure.subplots(1, 2 + bool(tried))
    for axes in utility:
        aucs = [each.auc for each in tried.values()]
        own = next(iter(tried.values())).auc_of_rows
        axes.plot([*tried], aucs, "o-", color="#2166ac", label="release")
        axes.axhline(own, color="#222222", linestyle="--", label="the rows themselves")
        axes.legend(frameon=False)
    epsilons = [each.epsilon for each in found]
    for name, text, colour in (
        ("code_error", "a bin or a level", "#2166ac"),
        ("label_error", "a label", "#b2182b"),
    ):
        values = [getattr(each, name) for each in found]
        if None not in values:
            shares = [100.0 * value / n_patients for value in values]
            errors.plot(epsilons, shares, "o-", color=colour, label=text)
    if errors.lines:
        errors.legend(frameon=False)
    within = [each.releases or math.nan for each in found]
    releases.plot(epsilons, within, "o-", color="#222222")
    for axes, text, scale in (
        *((axes, "AUC of a model trained on it", "linear") for axes in utility),
        (errors, "error of a share, percentage points (95 %)", "log"),
        (releases, "releases within the lifetime budget", "log"),
    ):
        axes.set(xscale="log", yscale=scale, xlabel="epsilon", ylabel=text)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        if scale == "log":
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.grid(color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
