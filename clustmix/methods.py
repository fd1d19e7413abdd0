"""The class of each registered method: its signature and its words come from its entry."""

import inspect
from functools import cache

from clustmix.estimator import settings_of
from clustmix.synthesizer import Synthesizer
from tasks.methods.registry import MethodEntry


@cache
def class_of(entry: MethodEntry) -> type[Synthesizer]:
    """Make the class of a registered method: its signature and its words come from the entry."""
    made = type(
        entry.class_name,
        (Synthesizer,),
        {"_entry": entry, "__module__": "clustmix", "__doc__": _documentation(entry)},
    )
    common = [
        parameter
        for parameter in inspect.signature(Synthesizer).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in settings_of(entry.config).items()
    ]
    made.__signature__ = inspect.Signature([*common, *settings])  # type: ignore[attr-defined]
    return made


def _first_line(of: object) -> str:
    return inspect.cleandoc(of.__doc__ or "").partition("\n")[0]


def _documentation(entry: MethodEntry) -> str:
    """Say what a method is, what it takes and how it is used, from its entry and settings."""
    text = inspect.cleandoc(Synthesizer.__doc__ or "")
    parameters = text.split("**settings")[0].split("----------\n", 1)[1].rstrip()
    attributes = text[text.index("Attributes\n") : text.index("\nNotes\n")]
    fields = entry.config.model_fields
    settings = "".join(
        f"\n{name}\n    {fields[name].description or _first_line(fields[name].annotation)}"
        for name in settings_of(entry.config)
    )
    return f"""{entry.title}, with a proof that covers every step that reads a row.

Source: {entry.source}.

Parameters
----------
{parameters}{settings}

{attributes}
Notes
-----
{inspect.cleandoc(entry.config.__doc__ or "")}

Privacy
-------
`plan` says what is measured with which noise, before a row is read; `fit` draws it once.

Examples
--------
>>> from clustmix import {entry.class_name}, Schema
>>> schema = Schema(
...     items=("tea", "milk", "bread", "jam", "rice", "beans", "eggs", "salt"),
...     label={{"name": "again", "levels": {{"no": (), "yes": ()}}}},
... )
>>> model = {entry.class_name}(schema, epsilon=1.0, delta=1e-6)
>>> model.plan().guarantee.epsilon <= 1.0
True
>>> model
{entry.class_name}(epsilon=1.0, delta=1e-06), not fitted
"""
