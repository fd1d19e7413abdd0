"""Run of one command, whose failures become one line and an exit code."""

import atexit
import gc
import os
import sys
import traceback
from contextlib import nullcontext

import typer
from typer.completion import completion_init
from typer.main import get_command

from flows.cli import terminal
from flows.cli.app import app
from flows.cli.options import load_settings
from flows.cli.site import COMPLETE
from flows.cli.stopping import stoppable
from privacy.errors import ClustMixError, ConfigurationError

STOPPABLE = frozenset({"release", "check", "plan", "publish", "audit"})
"""Commands that compute; the others are short, or start processes that stay."""


def run(words: list[str]) -> int:
    """Run one command and return its exit code."""
    if COMPLETE in os.environ:
        completion_init()
        get_command(app).main(words, "clustmix", COMPLETE)  # answers the shell and exits
    slow = stoppable(as_json="--json" in words) if {*words} & STOPPABLE else nullcontext()
    try:
        with slow:
            code = _run(words)
        sys.stdout.flush()  # a reader that is gone is noticed here, not while Python ends
        return code
    except ClustMixError as error:
        failed = error
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter must not flush into it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        failed = _unusable(error) if error.filename is not None else _unexpected(error)
    except KeyboardInterrupt:
        failed = ClustMixError("STOPPED", "stopped from the keyboard")
    except Exception as error:
        failed = _unexpected(error)
    terminal.failure(failed, as_json="--json" in words)
    return failed.exit_code


def _run(words: list[str]) -> int:
    """Run a command without typer's own handling of errors, interrupts and closed pipes."""
    command = get_command(app)
    try:
        with command.make_context("clustmix", list(words)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as done:  # of --help and --version
        return done.exit_code
    except typer.TyperException as error:
        path = getattr(getattr(error, "ctx", None), "command_path", "clustmix")
        text = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        raise ConfigurationError("USAGE", f"{text} (see {path} --help)") from None


def _unusable(error: OSError) -> ClustMixError:
    if isinstance(error, FileExistsError):
        text = f"expected no file at {error.filename}, found one; name another"
        return ConfigurationError("FILE_EXISTS", text)
    text = f"expected to read or write {error.filename}, found: {error.strerror}"
    return ConfigurationError("FILE_UNUSABLE", text)


def _unexpected(error: Exception) -> ClustMixError:
    """Write the traceback, which may quote private data, to the private log."""
    from tasks.execution.runtime import PRIVATE_LOG_NAME, private_log, private_log_directory

    stopped = f"stopped by {type(error).__name__}"
    try:
        folder = load_settings().diagnostics
        with private_log_directory(folder):
            private_log("command", "".join(traceback.format_exception(error)))
    except (ClustMixError, OSError):
        return ClustMixError("UNEXPECTED", f"{stopped}; the private log cannot be written")
    return ClustMixError("UNEXPECTED", f"{stopped}; {folder / PRIVATE_LOG_NAME} says where")


# Without this, a last garbage collection delays the end of the process by a second.
atexit.register(gc.freeze)
