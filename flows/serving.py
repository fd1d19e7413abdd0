"""End states and page of a flow run that an orchestrator has started. All of it is public."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import artifacts
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from flows.events import emit, release_event
from flows.installation import Installation
from flows.measurement import clean_up
from flows.orchestrator import refuse_unsafe_orchestrator
from flows.site.request import ReleaseRequest
from flows.stages import STEPS, place_of, text_of
from privacy.errors import BudgetRefused, ClustMixError, refusals
from privacy.ledger import Balance, EntryState, LedgerEntry
from storage.arrivals.arrival_store import ArrivalStore
from storage.releases.manifest import Manifest
from storage.settings import Settings, require_fixed_places
from tasks.execution import runtime
from tasks.reporting.claim import Claim
from tasks.reporting.rendering import render
from tasks.steps.bundle import REPORT_FILE
from tasks.steps.janitor import Janitor

refusal = refusals(__package__)


def run(
    step: str, about: tuple[str, str], body: Callable[[Installation], State[None]]
) -> State[None]:
    """Run the body of a flow and return the state in which it ends; nothing is raised.

    `about` is a dataset and the id of a release. A budget that does not allow a release, and a gate
    that withholds one, are ordinary ends: their state has a name of its own and is no failure.
    """

    def run_body(settings: Settings) -> State[None]:
        refuse_unsafe_orchestrator()
        require_fixed_places()
        with runtime.listen_to_stages(_PageProgress("/".join(about), STEPS[step])):
            return body(Installation.open(settings))

    ending = runtime.with_private_log(step, about[1], run_body)
    if not isinstance(ending, runtime.Failed):
        return ending
    if ending.error_class is BudgetRefused:
        # The ledger knows nothing of a refusal: it has no entry.
        with suppress(ClustMixError):  # the state of the run says the same
            emit([release_event("release.refused", *about, reason=ending.code)])
    return ending.state()


@contextmanager
def arrival_of(request: ReleaseRequest, *, folder: Path, janitor: Janitor) -> Iterator[Path | None]:
    """Clean up, and give the table of the arrival that a request names, or None.

    The arrival, one of those in `folder`, is taken here and ended with the block, even if that
    fails. If an earlier run of it was charged and stopped, a person has to decide on a new charge.
    """
    if request.arrival is None:
        clean_up(janitor)
        yield None
        return
    arrivals = ArrivalStore(folder)
    with arrivals.released_as(
        request.arrival, dataset=request.dataset, release_id=request.release_id
    ) as table:
        # A run that died while it drew is burned here at the latest.
        clean_up(janitor)
        # Of all its runs, not only the last: a run may die before it reaches this line.
        burned = {e.release_id for e in janitor.entries.all() if e.state is EntryState.BURNED}
        stopped = [each for each in arrivals.releases_of(request.arrival) if each in burned]
        if stopped:
            raise refusal("ARRIVAL_BURNED", release=stopped[0], arrival=request.arrival)
        yield table


def show_budget(entry: LedgerEntry, balance: Balance, year: str) -> None:
    """Show the spent and the remaining budget of the patients, and the cost of a schedule."""
    about = {"dataset": entry.dataset, "release_rho": entry.rho, "year": year}
    text = render("budget.md", balance=balance, **about)
    _show(f"budget-{entry.dataset}", f"Privacy budget of {entry.dataset}", text)


def show_release(manifest: Manifest, bundle: Path, releases_url: str | None) -> None:
    """Show the guarantee, the gate and the report of a published release."""
    _show_claims(manifest)
    report = f"{manifest.dataset}/{manifest.release_id}/{REPORT_FILE}"
    _try(
        artifacts.create_link_artifact,
        (bundle / REPORT_FILE).as_uri()
        if releases_url is None
        else f"{releases_url.rstrip('/')}/{report}",
        link_text=f"Report of {manifest.ref}",
        key=f"report-{manifest.dataset}",
        description=f"Report of {manifest.ref}",
    )


def show_waiting(manifest: Manifest, folder: Path, changed: Sequence[str]) -> None:
    """Show an officer the release to decide on, and the changes since the last check."""
    _show_claims(manifest)
    text = render("waiting.md", manifest=manifest, folder=str(folder), changed=changed)
    _show(f"decision-{manifest.dataset}", f"{manifest.ref} waits for an officer", text)


def _show_claims(manifest: Manifest) -> None:
    for name in ("guarantee", "gate"):
        text = render(f"{name}.md", manifest=manifest, claim=Claim(manifest))
        _show(f"{name}-{manifest.dataset}", f"{name.title()} of {manifest.ref}", text)


class _PageProgress:
    """Progress of a run on its page: a bar, and a line of the log for each stage."""

    def __init__(self, name: str, stages: Mapping[str, str]) -> None:
        self._log = get_run_logger()
        self._stages = stages
        self._bar = _try(
            artifacts.create_progress_artifact,
            0.0,
            key=f"progress-{name.partition('/')[0]}",
            description=f"Progress of {name}",
        )

    def __call__(self, name: str, seconds: float | None) -> None:
        """Take note of a stage that starts (None) or ends."""
        percent = 100.0 * place_of(name, self._stages)
        if seconds is None or percent == 0.0:
            return
        self._log.info("%s: %s", name, text_of(name))
        if self._bar is not None:
            # A bar that cannot be moved is given up: each try waits for the server.
            self._bar = _try(artifacts.update_progress_artifact, self._bar, progress=percent)


def _show(key: str, title: str, text: str) -> None:
    _try(artifacts.create_markdown_artifact, text, key=key, description=title)


def _try(show: Callable[..., Any], *arguments: Any, **options: Any) -> UUID | None:
    """Call a function that shows something; an unreachable page must not end a paid run."""
    with suppress(Exception):
        shown = show(*arguments, **options)
        return shown if isinstance(shown, UUID) else None
    return None
