"""The command ``clustmix``: it runs one command and turns failures into one line and a code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback

from flows.cli import terminal
from flows.cli.parser import build_parser
from privacy.errors import ClustMixError, ConfigurationError


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = build_parser().parse_args(arguments)
    as_json = getattr(options, "json", False)
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # a reader that is gone is noticed here, not while Python ends
        return code
    except ClustMixError as error:
        failed = error
    except BrokenPipeError:
        # Whoever read the answer has seen enough; the interpreter must not flush into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            failed = _unexpected(error)
        else:
            failed = ConfigurationError(
                "FILE_UNUSABLE",
                f"expected to read or write {error.filename}, found: {error.strerror}",
            )
    except KeyboardInterrupt:
        failed = ClustMixError("STOPPED", "stopped from the keyboard")
    except Exception as error:
        failed = _unexpected(error)
    finally:
        gc.enable()  # a command that is refused while it loads must not leave it off
    terminal.failure(failed, as_json=as_json)
    return failed.exit_code


def _unexpected(error: Exception) -> ClustMixError:
    """Keep the traceback, which may quote what was worked on, in the private log."""
    from storage.settings import load_settings
    from tasks.execution.runtime import PRIVATE_LOG_NAME, private_log, private_log_directory

    stopped = f"stopped by {type(error).__name__}"
    try:
        folder = load_settings().diagnostics
        with private_log_directory(folder):
            private_log("command", "".join(traceback.format_exception(error)))
    except (ClustMixError, OSError):
        return ClustMixError("UNEXPECTED", f"{stopped}; the private log cannot be written")
    return ClustMixError("UNEXPECTED", f"{stopped}; {folder / PRIVATE_LOG_NAME} says where")


# The memory of a process that ends need not be searched for garbage, which takes it a second.
atexit.register(gc.freeze)
