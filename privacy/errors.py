"""The exceptions of ClustMix: a public code, a public message and an exit code.

Anybody may read a message: it ends up in logs, in terminal output and in an orchestrator's records.
One about private data names the rule and the column, never a value, a row or a count.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from types import MappingProxyType
from typing import ClassVar


class ClustMixError(Exception):
    """Base of all errors whose message is public by construction.

    The code is a stable identifier in capitals, for example ``"BUDGET_EXCEEDED"``; the message is
    one sentence or more for a person: what was expected and what to do.
    """

    exit_code: ClassVar[int] = 1
    faults: tuple[str, ...] = ()
    """Faults of a file, if there are several; the message joins all, and callers may list them."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ConfigurationError(ClustMixError):
    """A setting, a site file or an argument that is not acceptable (exit code 2)."""

    exit_code: ClassVar[int] = 2


class InputError(ClustMixError):
    """A data source that does not keep what its site file declares (exit code 2)."""

    exit_code: ClassVar[int] = 2


class BudgetRefused(ClustMixError):
    """A release that the privacy budget does not pay for; an ordinary outcome (exit code 3)."""

    exit_code: ClassVar[int] = 3


class Withheld(ClustMixError):
    """A release that was paid for and is not published (exit code 4)."""

    exit_code: ClassVar[int] = 4


class LedgerError(ClustMixError):
    """The ledger cannot do what was asked of it (exit code 1)."""


class IntegrityError(ClustMixError):
    """A record or a file that was changed after it was written (exit code 1)."""


def refusals(package: str, *own: type[ClustMixError]) -> Callable[..., ClustMixError]:
    """Return the function that makes the errors in ``refusals.toml`` of a package.

    It takes a code, or code and case, and the facts that fill the braces of the text: all public.
    The texts are read here, so that an error needs no file. `own` are classes of the package.
    """
    kinds = globals() | {kind.__name__: kind for kind in own}
    by_kind = tomllib.loads(resources.files(package).joinpath("refusals.toml").read_text("utf-8"))
    texts = {key: (kind, text) for kind, keys in by_kind.items() for key, text in keys.items()}

    def refusal(key: str, /, **facts: object) -> ClustMixError:
        kind, text = texts[key]
        error: ClustMixError = kinds[kind](key.partition(" ")[0], text.format(**facts))
        return error

    return refusal


def require(condition: bool, expected: str, found: object) -> None:
    """Refuse a number that a calculation of privacy does not take (ConfigurationError)."""
    if not condition:
        raise ConfigurationError("PRIVACY_NUMBER_INVALID", f"expected {expected}, found {found!r}")


EXTRAS = MappingProxyType(
    {
        "server": (
            "dask", "distributed", "fastapi", "great_expectations", "jinja2", "markupsafe",
            "matplotlib", "PIL", "prefect", "prometheus_client", "psutil", "psycopg",
            "pydantic_settings", "rich", "sklearn", "sqlalchemy", "sqlglot", "supervisor", "typer",
        ),
        "audit": ("jax_privacy",),
        "distill": ("frozendict", "neural_tangents"),
        "ledger": ("psycopg", "sqlalchemy"),
        "hospital": ("duckdb", "fhirpathpy", "openpyxl", "pydicom"),
        "s3": ("s3fs",),
    }
)  # fmt: skip
"""Modules of each extra of pyproject.toml; `extra` turns their absence into `MissingExtra`."""


class MissingExtra(ClustMixError, ImportError):
    """Packages of an extra, which the message names, are not installed (exit code 2)."""

    exit_code = 2


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import what comes with an extra: MissingExtra if a module of it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS[name]:
            raise
    else:
        return
    raise MissingExtra(
        "EXTRA_MISSING",
        f"expected the packages of the extra {name}, found no {missing}; install them: "
        f"pip install 'clustmix[{name}]'",
    )
