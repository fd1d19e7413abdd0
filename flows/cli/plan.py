"""The command ``plan``: the errors of releases at several budgets, from the declarations alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flows.cli import terminal
from flows.cli.options import Commands, SitePath, option
from flows.cli.publishing import verified_bundle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flows.watching.planning import Planning, Prospect
    from flows.watching.simulation import Utility

_RELEASES = (
    "within the lifetime budget, if the ledger holds none yet (clustmix ledger show); losses add "
    "up more slowly than their epsilons"
)
_ERRORS = (
    "noise in the counts of a label and of a bin by label, in patients and in percent of all, "
    "exceeded once in 20 times; in a release, other counts make those of bins smaller"
)
_LOST = (
    "columns whose bins or levels, were they equally frequent, would each have fewer patients than "
    "the error of one; declare fewer of them. Rare ones are lost in noise sooner"
)
_ASSUMED = "assumed, as the site file declares no number"
_NO_COUNTS = "{} draws no counts by label, so these errors do not exist; --simulate tries releases"

app = Commands()


@app.command()
def plan(
    site: SitePath,
    *,
    epsilon: Annotated[
        list[float] | None,
        option("NUMBER", "a budget beside the declared one; may be given several times"),
    ] = None,
    plot: Annotated[Path | None, option("FILE", "draw it: .svg, .pdf or .png")] = None,
    simulate: Annotated[
        bool, option(None, "also try releases of made-up rows, which takes minutes", "--simulate")
    ] = False,
    like: Annotated[
        Path | None,
        option("BUNDLE", "try releases of the rows of an earlier bundle instead of made-up ones"),
    ] = None,
) -> None:
    """Compare releases at several budgets; no row is read.

    First a verdict: the columns that the table carries at the declared epsilon. Then, for each
    epsilon, the number of such releases within the lifetime budget, and the error, by noise alone,
    of a number of patients with a label and of one bin or level. A bin with fewer patients cannot
    be distinguished from an empty one. With rows that stand in for the table, also the accuracy of
    a model trained on a release of them.
    """
    from flows.site.request import job_of
    from flows.site.site_file import load_site
    from flows.watching.planning import EPSILONS, Planning, draw_prospects, require_format
    from storage.files.refs import new_release_id

    job = job_of(load_site(site), new_release_id())
    planning = Planning(job)
    prospects = planning.prospects(epsilon or EPSILONS)
    if plot is not None:
        require_format(plot)
    tried = _tried(planning, prospects, like) if simulate or like is not None else {}
    if plot is not None:
        draw_prospects(prospects, planning.patients, plot, tried)
    verdict = planning.verdict(prospects) + _by_trial(tried.get(job.parameters.epsilon))
    found = {"verdict": verdict, "patients": planning.patients, "prospects": prospects}
    lost = {"levels": planning.levels(prospects), "pairs": planning.pairs}
    more = _if_any(derived=planning.derived, simulated=tried, tables=planning.tables)
    terminal.answer(
        found | {"warning": job.caution, **more, **_if_any(**lost)},
        job.title,
        {"Verdict": verdict},
        partial(_show, planning, prospects, tried, declared=job.parameters.epsilon),
        {
            "Patients": f"{planning.patients:,} ({'declared' if job.patients else _ASSUMED})",
            "Tables": _tables(planning.tables),
            "Guarantee": f"epsilon as above, delta {job.parameters.delta:g}, {job.method.kind}",
            "Warning": job.caution,
            "Derived": planning.derived or None,
            "Releases": _RELEASES,
            "Errors": _ERRORS,
            "Lost": _LOST,
            **{name.capitalize(): text for name, text in lost.items()},
            "Dashes": None if prospects[0].code_error else _NO_COUNTS.format(job.method.kind),
            "Simulated": _simulated(tried),
        },
    )


def _show(
    planning: Planning,
    prospects: tuple[Prospect, ...],
    tried: Mapping[float, Utility],
    *,
    declared: float,
) -> None:
    patients, n_columns = planning.patients, len(planning.schema.columns)
    rows = []
    for each in prospects:
        error, utility = each.code_error, tried.get(each.epsilon)
        rows.append(
            (
                f"{each.epsilon:g}" + (" (declared)" if each.epsilon == declared else ""),
                f"{each.releases:,}",
                _patients(each.label_error),
                _patients(error),
                "-" if error is None else f"{100 * error / patients:.2g} %",
                "-" if error is None else f"{len(each.drowned)} of {n_columns}",
                *(() if utility is None else (f"{utility.auc:.3f}", f"{utility.one_way:.3f}")),
            )
        )
    header = ("epsilon", ">releases", ">label +-", ">bin +-", ">of all", ">lost in noise")
    terminal.table(rows, (*header, *((">AUC", ">distance") if tried else ())))


def _if_any(**found: object) -> dict[str, object]:
    return {name: value for name, value in found.items() if value}


def _tables(found: Mapping[str, tuple[float, float]]) -> str | None:
    parts = [
        f"{name} {100 * part:.3g} % (a kind or value among its events +- {100 * error:.2g} %)"
        for name, (part, error) in found.items()
    ]
    return f"{', '.join(parts)}, of the squared budget; all else is of patients" if parts else None


def _by_trial(tried: Utility | None) -> str:
    if tried is None:
        return ""
    return (
        ". On rows that stand in for it, a model trained on a release has an AUC of "
        f"{tried.auc:.3f}, on the rows themselves {tried.auc_of_rows:.3f}"
    )


def _simulated(tried: Mapping[float, Utility]) -> str | None:
    if not tried:
        return None
    one = next(iter(tried.values()))
    return (
        f"releases of {one.rows:,} rows that stand in for the table, one a patient and without "
        "constraints: AUC of a model trained on one, and mean distance of the shares of a column. "
        "Your table may differ"
    )


def _tried(
    planning: Planning, prospects: Sequence[Prospect], like: Path | None
) -> dict[float, Utility]:
    """Try releases at the epsilons of prospects, of rows like those of a bundle not revoked."""
    from flows.cli.progress import Progress
    from flows.watching.simulation import Simulation, rows_of

    with Progress("making rows up") as progress:
        progress.expect(len(prospects))
        rows = None if like is None else rows_of(verified_bundle(like)[0], planning)
        simulation = Simulation(planning, rows)
        found = {}
        for epsilon in (each.epsilon for each in prospects):
            progress.begin(f"trying epsilon {epsilon:g}", 1)
            found[epsilon] = simulation.utility(epsilon)
    return found


def _patients(error: float | None) -> str:
    return "-" if error is None else f"{error:,.3g}" if error < 100 else f"{error:,.0f}"
