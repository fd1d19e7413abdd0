"""Names of the arrays that most functions take and give."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

AnyFloats: TypeAlias = NDArray[np.floating]
Floats: TypeAlias = NDArray[np.float64]
Floats32: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.intp]
Codes: TypeAlias = NDArray[np.uint16]
"""Code of each cell: the index of its bin or level in the schema; a missing cell comes last."""

Records: TypeAlias = tuple[Codes, Codes]
"""Codes (n, d) of records and of their labels (n,)."""
