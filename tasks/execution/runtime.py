"""The border between private steps and the orchestrator.

Of an exception only its type and the step's name pass. Prefect is imported with the first task, so
that `configure_prefect` can come first. Stages of a run are named here and announced to listeners.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from privacy.errors import BudgetRefused, ClustMixError, Withheld, refusals
from storage.files.documents import listed
from storage.files.private import ensure_private_directory, open_private
from storage.settings import Settings, load_settings

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State
    from prefect.flows import Flow
    from prefect.tasks import Task

refusal = refusals(__package__)

P = ParamSpec("P")
R = TypeVar("R")

PRIVATE_LOG_NAME = "failures.log"

Listener = Callable[[str, float | None], None]
"""Called with a stage and None when it starts, with its seconds when it ends."""

_listener: ContextVar[Listener | None] = ContextVar("stage_listener", default=None)
_private_directory: ContextVar[Path | None] = ContextVar("private_directory", default=None)

_VARIABLES = listed(__name__.rpartition(".")[0], "environment.toml")

ORDINARY_ENDS = MappingProxyType({BudgetRefused: "Refused", Withheld: "Withheld"})
"""Names of the ends of a run that stopped and did not fail."""


class PipelineError(ClustMixError):
    """A step failed for a reason that is not public; ``code`` is "step:ExceptionType"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Public part of an exception, raised again as its class, which decides the exit code."""

    error_class: type[ClustMixError]
    code: str
    message: str

    def error(self) -> ClustMixError:
        """Return a fresh exception: no traceback, no context, no notes."""
        return self.error_class(self.code, self.message)

    def state(self) -> State[None]:
        """Return the state of a run that stopped, with a name of its own for an ordinary end."""
        from prefect.client.schemas.objects import State, StateType

        name, message = ORDINARY_ENDS.get(self.error_class), f"{self.code}: {self.message}"
        kind = StateType.FAILED if name is None else StateType.CANCELLED
        return State(type=kind, name=name, message=message)


def safe_environment() -> dict[str, str]:
    """Return the variables that keep values and facts on this machine, for a process to start."""
    return dict(_VARIABLES["safety"])


def configure_prefect(settings: Settings) -> None:
    """Set the environment for a silent, offline Prefect, before Prefect is imported.

    With ``PREFECT_API_URL`` set, that server is used and its operators decide about logs and
    services. Without it, Prefect starts a server of its own on the loopback interface, whose
    database lies in ``settings.prefect_home`` (mode 0700). It is a ConfigurationError if Prefect
    was imported earlier with another environment, or the home is open to others.
    """
    wanted = dict(_VARIABLES["safety"])
    if "PREFECT_API_URL" not in os.environ:
        home = ensure_private_directory(settings.prefect_home)
        wanted |= _VARIABLES["single_run"] | {"PREFECT_HOME": str(home)}
    if "prefect" in sys.modules and any(os.environ.get(k) != v for k, v in wanted.items()):
        raise refusal("PREFECT_ALREADY_IMPORTED")
    os.environ.update(wanted)


def with_private_log(step: str, release_id: str, body: Callable[[Settings], R]) -> R | Failed:
    """Call the body of a run with the settings, which are read inside of the guard too.

    Private texts of a failure go to a log of the release, whose folder is removed if it is empty.
    """

    def logged() -> R | Failed:
        settings = load_settings()
        directory = settings.diagnostics / release_id
        with private_log_directory(directory):
            outcome = guarded_call(step, body, settings)
        with suppress(OSError):
            directory.rmdir()
        return outcome

    return guarded_call(step, logged)


@contextmanager
def private_log_directory(directory: Path | None) -> Iterator[None]:
    """Send what is private of failures to a log in this folder (mode 0700); None drops it."""
    if directory is not None:
        ensure_private_directory(directory)
    token = _private_directory.set(directory)
    try:
        yield
    finally:
        _private_directory.reset(token)


def private_log(step: str, text: str) -> None:
    """Append a traceback or warning, which may hold private values, to the private log if any.

    Privacy
    -------
    The file, of mode 0600 in a directory of mode 0700, is for people who may see the cohort.
    """
    directory = _private_directory.get()
    if directory is None:
        return
    entry = f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {step}\n{text.rstrip()}\n"
    with open_private(directory / PRIVATE_LOG_NAME, "a") as log:
        log.write(entry.encode("utf-8", "backslashreplace"))


def run_of_request(name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a Prefect flow of a request: never tried again, and nothing that it returns is kept."""
    from prefect import flow

    return flow(
        name=name,
        flow_run_name="{request.dataset}/{request.release_id}",
        log_prints=False,
        persist_result=False,
        retries=0,
        validate_parameters=True,
    )


def guarded_task(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a Prefect task whose failures say which step failed and nothing else.

    Nothing is cached, persisted or tried again: a step that draws noise must not draw twice. The
    task, which has a public name, raises `ClustMixError` subclasses as they were raised, with their
    code and message alone, and `PipelineError` with the code "step:ExceptionType" for the rest.

    Privacy
    -------
    The exception that leaves has no ``__context__``, ``__cause__`` or notes: it is made anew
    outside of the ``except`` block, since Prefect logs and keeps what it is linked to.
    """
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return unwrapped(guarded_call(name, function, *args, **kwargs))

        return task(
            name=name, persist_result=False, cache_policy=NO_CACHE, retries=0, log_prints=False
        )(run)

    return decorate


def guarded_item(function: Callable[..., R]) -> Callable[..., R | Failed]:
    """Guard a function for Dask, which would log its arguments if it raised.

    It can be pickled when the function is importable; its private log is that of this context.
    """
    return functools.partial(_call_item, function, _private_directory.get())


def _call_item(
    function: Callable[..., R], log_directory: Path | None, *args: object, **kwargs: object
) -> R | Failed:
    # functools.partial objects and callable instances have no name of their own.
    inner = getattr(function, "func", function)
    step = str(getattr(inner, "__name__", type(inner).__name__))
    with private_log_directory(log_directory):
        return guarded_call(step, function, *args, **kwargs)


def unwrapped(result: R | Failed) -> R:
    """Return the result of a guarded call, or raise what is left of its exception."""
    if isinstance(result, Failed):
        raise result.error()
    return result


def guarded_call(
    step: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R | Failed:
    """Call a function and return its result, or what is public of its failure.

    For the body of a flow: an exception that leaves it is pickled to disk, whatever the settings.
    """
    # Numerical libraries quote values in warnings (convergence, counts): to the log, not stderr.
    with warnings.catch_warnings(record=True) as caught:
        try:
            return function(*args, **kwargs)
        except ClustMixError as error:
            _note(step, traceback.format_exc())
            return Failed(error_class=type(error), code=error.code, message=error.message)
        except Exception as error:
            _note(step, traceback.format_exc())
            return Failed(
                error_class=PipelineError,
                code=f"{step}:{type(error).__name__}",
                message="the step stopped; the private log of this run has the traceback",
            )
        finally:
            for warning in caught:
                _note(step, f"{warning.category.__name__}: {warning.message}")


def _note(step: str, text: str) -> None:
    """Log, or lose the text where the disk is full: an error would take along what it hides."""
    with suppress(OSError):
        private_log(step, text)


@contextmanager
def listen_to_stages(listener: Listener) -> Iterator[None]:
    """Report the stages of the runs of the block, which are public names, to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark a stage of a run."""
    listener = _listener.get()
    started = time.monotonic()
    if listener is not None:
        listener(name, None)
    yield
    if listener is not None:
        listener(name, time.monotonic() - started)


def guarded_stage(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a step a stage of a run and a task (`guarded_task`) of the same name."""
    return lambda function: guarded_task(name)(stage(name)(function))
