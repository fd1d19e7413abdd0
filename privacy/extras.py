"""What is installed beside the base of this software, and what to install where it is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

from privacy.errors import ClustMixError

EXTRAS = MappingProxyType(
    {
        "server": (
            "dask", "distributed", "fastapi", "great_expectations", "jinja2", "markupsafe",
            "matplotlib", "prefect", "psutil", "psycopg", "pydantic_settings", "rich", "sklearn",
            "sqlalchemy", "sqlglot", "typer",
        ),
        "papers": ("frozendict", "k_means_constrained", "neural_tangents", "ortools", "sklearn"),
    }
)  # fmt: skip
"""Modules that come with an extra of pyproject.toml, where they are imported without a question."""


class MissingExtra(ClustMixError, ImportError):
    """Packages of an extra, which the message names, are not installed (exit code 2)."""

    exit_code = 2


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import in the block what comes with an extra.

    Raises
    ------
    MissingExtra
        If a module of the extra is not installed. Any other one is no fault of the installation,
        and its error is left as it is.
    """
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
