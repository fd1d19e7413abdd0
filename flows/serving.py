"""A flow run that an orchestrator has started: how it ends, and what its page shows.

Everything here is public: ids, states, names of stages, guarantees, budgets.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.client.schemas.objects import State, StateType
from prefect.logging import get_run_logger
from prefect.states import Completed
from prefect.states import Failed as FailedState

from flows.events import PublicEvent, emit
from flows.server.orchestrator import refuse_unsafe_orchestrator
from flows.site.request import ReleaseRequest, load_job
from flows.stages import MEASURE, PUBLISH, place_of, text_of
from privacy.errors import BudgetRefused, ClustMixError, Withheld
from privacy.ledger import Balance, EntryState, LedgerEntry
from storage.arrivals.store import ArrivalStore
from storage.releases.manifest import Manifest
from storage.settings import Settings, load_settings, require_fixed_places
from tasks.execution.runtime import (
    Failed,
    guarded_call,
    guarded_stage,
    listen_to_stages,
    private_log_directory,
)
from tasks.reporting.report import budget_page, gate_page, guarantee_page, waiting_page
from tasks.steps import janitor
from tasks.steps.bundle import REPORT_FILE
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob

T = TypeVar("T")

_STAGES = MappingProxyType({"measure": MEASURE, "publish": PUBLISH})

_ORDINARY_ENDS = {BudgetRefused: "Refused", Withheld: "Withheld"}


@guarded_stage("clean-up")
def clean_up(settings: Settings) -> None:
    """Close and delete what dead runs have left, before a run reserves a budget."""
    janitor.clean_up(settings)


class RunRequest(Protocol):
    """What every request names."""

    @property
    def dataset(self) -> str:
        """Name of the dataset."""

    @property
    def release_id(self) -> str:
        """Id of the release."""


R = TypeVar("R", bound=RunRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended that did not fail: one public line, and a name if not Completed."""

    text: str
    name: str | None = None


def run(step: str, request: R, body: Callable[[R, Settings], Ending]) -> State[None]:
    """Run the body of a flow and return the state in which it ends; nothing is raised.

    A budget that does not allow a release, and a gate that withholds one, are ordinary ends: their
    state has a name of its own and does not count as a failure.
    """
    ending = guarded_call(step, with_private_log, step, request, _showing_stages(step, body))
    if isinstance(ending, Failed):
        _notify_of_refusal(request, ending)
        return ended(ending)
    return Completed(name=ending.name, message=ending.text)


def ended(failed: Failed) -> State[None]:
    """Return the state of a run that stopped."""
    message = f"{failed.code}: {failed.message}"
    name = _ORDINARY_ENDS.get(failed.error_class)
    if name is None:
        return FailedState(message=message)
    return State(type=StateType.CANCELLED, name=name, message=message)


def with_private_log(step: str, request: R, body: Callable[[R, Settings], T]) -> T | Failed:
    """Run with a private log for what may not leave; settings are read inside of the guard too."""
    settings = load_settings()
    log_directory = settings.diagnostics / request.release_id
    with private_log_directory(log_directory):
        outcome = guarded_call(step, body, request, settings)
    with suppress(OSError):
        log_directory.rmdir()  # only if nothing was logged
    return outcome


@contextmanager
def arrival_of(request: ReleaseRequest, settings: Settings) -> Iterator[ReleaseJob]:
    """Clean up and give the job of a request; where it names an arrival, that table is read.

    The arrival is begun here and ended with the block, whatever happens in it.
    If an earlier run of it was charged and stopped, nobody but a person decides to pay again.
    """
    job = load_job(request, settings)
    if request.arrival is None:
        clean_up(settings)
        yield job
        return
    store = ArrivalStore(settings.arrivals)
    with store.released_as(
        request.arrival, dataset=request.dataset, release_id=request.release_id
    ) as content:
        # A run that died while it drew is burned here at the latest.
        clean_up(settings)
        # Every run of it, not the last alone: a run may die before it comes to this line.
        burned = _burned_among(Entries(settings), store.releases_of(request.arrival))
        if burned is not None:
            raise Withheld(
                "ARRIVAL_BURNED",
                f"release {burned} of arrival {request.arrival} was charged and "
                "stopped; once its cause is mended, have the table delivered anew, which is "
                "charged again",
            )
        yield replace(job, source=job.source.model_copy(update={"path": content, "data": None}))


def _burned_among(entries: Entries, release_ids: tuple[str, ...]) -> str | None:
    """Return the first release of these that was charged and stopped, None if there is none."""
    burned = {entry.release_id for entry in entries.all() if entry.state is EntryState.BURNED}
    return next((release_id for release_id in release_ids if release_id in burned), None)


def show_budget(entry: LedgerEntry, balance: Balance) -> None:
    """Show what the patients have spent who paid, and what is left."""
    _try(
        create_markdown_artifact,
        budget_page(entry.dataset, balance, release_rho=entry.rho),
        key=f"budget-{entry.dataset}",
        description=f"Privacy budget of {entry.dataset}",
    )


def show_release(manifest: Manifest, bundle: Path, settings: Settings) -> None:
    """Show the guarantee, the gate and the report of a published release."""
    _show_claims(manifest)
    report = f"{manifest.dataset}/{manifest.release_id}/{REPORT_FILE}"
    base = settings.releases_url
    _try(
        create_link_artifact,
        (bundle / REPORT_FILE).as_uri() if base is None else f"{base.rstrip('/')}/{report}",
        link_text=f"Report of {manifest.ref}",
        key=f"report-{manifest.dataset}",
        description=f"Report of {manifest.ref}",
    )


def show_waiting(manifest: Manifest, folder: Path) -> None:
    """Show an officer what to decide."""
    _show_claims(manifest)
    _try(
        create_markdown_artifact,
        waiting_page(manifest, str(folder)),
        key=f"decision-{manifest.dataset}",
        description=f"{manifest.ref} waits for an officer",
    )


def ask_for_publication(entry: LedgerEntry) -> None:
    """Ask for a publication from a measurement that was sealed in an earlier run."""
    emit([event_about(entry.dataset, entry.release_id, "measurement.sealed")])


def event_about(dataset: str, release_id: str, name: str, **more: str) -> PublicEvent:
    """Return an event about a release."""
    return PublicEvent(
        name=name,
        resource_id=f"clustmix.release.{release_id}",
        payload={"dataset": dataset, "release_id": release_id, **more},
    )


def _show_claims(manifest: Manifest) -> None:
    for name, text in (("guarantee", guarantee_page(manifest)), ("gate", gate_page(manifest))):
        _try(
            create_markdown_artifact,
            text,
            key=f"{name}-{manifest.dataset}",
            description=f"{name.title()} of {manifest.ref}",
        )


def _notify_of_refusal(request: RunRequest, failed: Failed) -> None:
    """Tell of a refusal, of which the ledger knows nothing: it has no entry."""
    if failed.error_class is not BudgetRefused:
        return
    event = event_about(request.dataset, request.release_id, "release.refused", reason=failed.code)
    with suppress(ClustMixError):  # the state of the run says the same
        emit([event])


def _showing_stages(
    step: str, body: Callable[[R, Settings], Ending]
) -> Callable[[R, Settings], Ending]:
    def run_body(request: R, settings: Settings) -> Ending:
        refuse_unsafe_orchestrator()
        require_fixed_places()
        with listen_to_stages(_PageProgress(request, _STAGES[step])):
            return body(request, settings)

    return run_body


class _PageProgress:
    """Shows on the page how far a run is: a bar, and a line of the log for each stage."""

    def __init__(self, request: RunRequest, stages: Mapping[str, str]) -> None:
        self._log = get_run_logger()
        self._stages = stages
        self._bar = _try(
            create_progress_artifact,
            0.0,
            key=f"progress-{request.dataset}",
            description=f"Progress of {request.dataset}/{request.release_id}",
        )

    def __call__(self, name: str, seconds: float | None) -> None:
        """Take note of a stage that starts (None) or ends."""
        percent = 100.0 * place_of(name, self._stages)
        if seconds is None or percent == 0.0:
            return
        self._log.info("%s: %s", name, text_of(name))
        if self._bar is not None:
            # A bar that cannot be moved is given up: each try waits for the server.
            self._bar = _try(update_progress_artifact, self._bar, progress=percent)


def _try(show: Callable[..., Any], *arguments: Any, **options: Any) -> UUID | None:
    """Show something, or go without: a page that cannot be reached must not end a paid run."""
    with suppress(Exception):
        shown = show(*arguments, **options)
        return shown if isinstance(shown, UUID) else None
    return None
