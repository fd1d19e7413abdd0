"""ClustMix for a notebook: a table in memory goes in, synthetic rows with a guarantee come out.

>>> import clustmix
>>> clustmix.ClustMix.__name__
'ClustMix'

Every registered method has a class here, with the methods of `clustmix.synthesizer.Synthesizer`.
It plans, measures and samples by the functions that the flow of a hospital runs. A class is made
when it is first named, so that this import is quick and loads no orchestrator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from clustmix.estimator import NotFittedError
from clustmix.methods import class_of
from clustmix.schema import CategoricalColumn, ImageColumns, Label, NumericColumn, Schema
from clustmix.synthesizer import Synthesizer
from tasks.methods.registry import METHODS

if TYPE_CHECKING:
    from clustmix.bundles import Bundle, verify
    from clustmix.guarantee import Guarantee, Plan
    from tasks.reporting.released_teacher import Teacher

_LATE = {
    "Bundle": "clustmix.bundles",
    "Guarantee": "clustmix.guarantee",
    "Plan": "clustmix.guarantee",
    "Teacher": "tasks.reporting.released_teacher",
    "verify": "clustmix.bundles",
}

__all__ = [  # noqa: PLE0604 - names, of the methods too
    "Bundle",
    "CategoricalColumn",
    "Guarantee",
    "ImageColumns",
    "Label",
    "NotFittedError",
    "NumericColumn",
    "Plan",
    "Schema",
    "Synthesizer",
    "Teacher",
    "verify",
    *(entry.class_name for entry in METHODS),
]


def __getattr__(name: str) -> type[Synthesizer]:
    """Make the class of a method, or load what takes a moment to load."""
    for entry in METHODS:
        if entry.class_name == name:
            return class_of(entry)
    if name in _LATE:
        # No method; a type checker has it from above.
        return cast(type[Synthesizer], getattr(import_module(_LATE[name]), name))
    raise AttributeError(f"module 'clustmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
