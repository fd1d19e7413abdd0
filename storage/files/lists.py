"""Lists that come with the program, as TOML beside the module that reads them."""

import tomllib
from importlib import resources
from typing import Any


def listed(package: str, file: str) -> dict[str, Any]:
    """Return what a file of a package lists."""
    return tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))
