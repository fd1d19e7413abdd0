"""Declarations of options and arguments, those that several commands share, and exit codes.

Typer does not test whether a file can be read (``readable=False``): its reader reports that.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flows.cli import terminal

if TYPE_CHECKING:
    from storage.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

EXIT_CODES = """\b
exit codes:
  0  done
  2  bad configuration or input
  3  refused by the budget
  4  withheld by a gate
  1  anything else"""


def argument(metavar: str, text: str) -> Any:
    """Declare an argument by the word for its value and its help."""
    return typer.Argument(metavar=metavar, help=text, readable=False)


def option(metavar: str | None, text: str, *names: str, **limits: Any) -> Any:
    """Declare an option by the word for its value (None: a flag or a choice) and its help."""
    return typer.Option(*names, metavar=metavar, help=text, readable=False, **limits)


AsJson = Annotated[
    bool, option(None, "write the answer, or the failure, as JSON to stdout", "--json")
]
SitePath = Annotated[Path, argument("SITE.yaml", "site file of the dataset (see clustmix init)")]
ReleaseId = Annotated[str, argument("RELEASE", "id of the release")]
Bundle = Annotated[Path, argument("BUNDLE", "folder of a release, with its manifest.json")]
RequesterKey = Annotated[
    Path | None,
    option("FILE", "private key of the requester, where an officer has to approve", "--key"),
]
OfficerKey = Annotated[Path, option("FILE", "private key of the officer", "--key")]
Explain = Annotated[bool, option(None, "explain the guarantee in words", "--explain")]
Reason = Annotated[str, option("TEXT", "reason, in one line of 200 characters")]


def load_settings() -> "Settings":
    """Return the settings of this installation; their library is loaded here."""
    from storage import settings

    return settings.load_settings()


class Commands(typer.Typer):
    """Commands that answer programs as JSON, and whose help ends with the exit codes."""

    def command(self, name: str | None = None, **how: Any) -> Callable[[F], F]:
        """Register a command with the option ``--json``, which sets the form of its answer."""
        register = super().command(name, epilog=EXIT_CODES, **how)

        def add(function: F) -> F:
            @wraps(function)
            def run(*, as_json: bool, **given: Any) -> Any:
                with terminal.answering(for_program=as_json):
                    return function(**given)

            declared = inspect.signature(function, eval_str=True)
            more = inspect.Parameter(
                "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
            )
            run.__annotations__ = {**function.__annotations__, "as_json": AsJson}
            run.__signature__ = declared.replace(  # type: ignore[attr-defined]
                parameters=[*declared.parameters.values(), more]
            )
            register(run)
            return function

        return add
