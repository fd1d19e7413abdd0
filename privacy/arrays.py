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
"""Codes of the values of declared columns; `storage.schema.table.TableSchema` says which."""

Records: TypeAlias = tuple[Codes, Codes]
"""Codes (n, d) of records and of their labels (n,)."""
