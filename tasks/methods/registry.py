"""The closed list of methods that a site file can name.

No plug-ins and no import paths of others: third-party code cannot enter a release. A method is one
entry of ``methods.toml`` and the module that it names; `CONTRIBUTING.md` says how one is added.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

if TYPE_CHECKING:
    from tasks.measurement.encoded import EncodingDomain
    from tasks.measurement.method import Synthesizer


class MethodEntry(BaseModel, frozen=True, extra="forbid"):
    """Public facts about a method, as ``methods.toml`` beside this module states them.

    `kind` is its name in a site file, and `title` its name for people. Settings (a pydantic model
    with the field ``kind``) and synthesizer, which is made of a domain and settings, are named as
    ``module:class`` below `tasks.methods` and loaded on use, as some need seconds. Histograms are
    the names of its statistics that count codes by label: by
    `tasks.measurement.centred.label_counts`. Its data kinds are what it is made for; it runs on any
    declared table.

    Raise the version if the same settings and rows give other draws or other released arrays, which
    `tests/tasks/test_golden_arrays.py` notices: every table released with the method is then
    measured again, and charged. Leave it alone whenever they stay the same.
    """

    kind: str
    title: str
    source: str
    data_kinds: tuple[str, ...]
    settings: str
    version: int
    synthesizer: str
    histograms: tuple[str, ...] = ()

    @property
    def config(self) -> type[BaseModel]:
        """The class of its settings."""
        return cast(type[BaseModel], _class_of(self.settings))


_FILE = resources.files(__package__).joinpath("methods.toml")

METHODS = tuple(
    MethodEntry(kind=kind, **facts)
    for kind, facts in tomllib.loads(_FILE.read_text("utf-8")).items()
)


def method_entry(kind: str) -> MethodEntry:
    """Entry of a registered method; KeyError names an unknown one."""
    for entry in METHODS:
        if entry.kind == kind:
            return entry
    raise KeyError(f"expected a registered method, found {kind!r}")


def build(config: Any, domain: EncodingDomain) -> Synthesizer:
    """Bind a method, by its settings, to a public domain."""
    method = _class_of(method_entry(config.kind).synthesizer)
    return cast("Synthesizer", method(domain, config))


def _class_of(form: str) -> Callable[..., Any]:
    module, _, name = form.partition(":")
    return cast(Callable[..., Any], getattr(import_module(f"{__package__}.{module}"), name))
