"""ClustMix for a notebook: a table in memory goes in, synthetic rows with a guarantee come out.

>>> import clustmix
>>> clustmix.ClustMix.kind
'clustmix'

Every method is a class with `plan`, `fit`, `sample`, `save` and `load` of `Synthesizer`. It plans,
measures and samples by the functions that the flow of a hospital runs. This import is quick and
loads no orchestrator; slow modules are loaded when they are used.
"""

from clustmix.guarantee import Guarantee, Plan
from clustmix.methods import DPCDA, DPGM, ClustMix, DPKMeans, NaiveBayes
from clustmix.pools import contrast, pool
from clustmix.schema import (
    CategoricalColumn,
    DateColumn,
    EventTable,
    ImageColumns,
    IntegerColumn,
    Label,
    RealColumn,
    Schema,
)
from clustmix.synthesizer import Synthesizer
from clustmix.target import NotFittedError
from clustmix.verification import Bundle, verify
from tasks.reporting.conclusions import combine

__all__ = [
    "DPCDA",
    "DPGM",
    "Bundle",
    "CategoricalColumn",
    "ClustMix",
    "DPKMeans",
    "DateColumn",
    "EventTable",
    "Guarantee",
    "ImageColumns",
    "IntegerColumn",
    "Label",
    "NaiveBayes",
    "NotFittedError",
    "Plan",
    "RealColumn",
    "Schema",
    "Synthesizer",
    "combine",
    "contrast",
    "pool",
    "verify",
]
