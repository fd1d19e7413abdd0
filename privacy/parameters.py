"""Terms of a guarantee: epsilon and delta, the privacy unit and the adjacency."""

import math
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

from privacy.errors import refusals

refusal = refusals(__package__)

MAX_DELTA = 1e-3
"""Upper limit of delta: a mechanism may publish a random patient with probability delta."""


class Adjacency(StrEnum):
    """Which two tables are neighbours.

    With ADD_REMOVE one has all rows of one patient more than the other; with REPLACE_ONE one
    patient's rows are exchanged for those of another patient.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyParameters:
    """The target of an (epsilon, delta)-differential privacy guarantee.

    Epsilon, the bound on the privacy loss in nats, is finite and above 0. Delta, with which the
    bound may fail, is above 0 and below 1/1000: a public constant, never a function of the number
    of patients. A number outside its range is a ConfigurationError.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise refusal("EPSILON_INVALID", found=self.epsilon)
        if not 0 < self.delta < MAX_DELTA:
            raise refusal("DELTA_INVALID", most=MAX_DELTA, found=self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyUnit:
    """Whom the guarantee protects: one patient, with all rows of that patient that are used.

    The column identifies the patient; None declares that every patient has one row. At most
    `max_rows` rows of a patient are used, at least 1, and 1 without a column (ConfigurationError).
    `key_normal` are steps that give each key one spelling (``nfc``, ``lower``, ``strip_zeros``),
    which the regular expression `key_pattern` matches as a whole; None takes every key.
    """

    column: str | None
    max_rows: int
    key_pattern: str | None = None
    key_normal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.column is not None and not self.column.strip():
            raise refusal("PRIVACY_UNIT_INVALID column")
        if self.max_rows < 1 or (self.column is None and self.max_rows != 1):
            raise refusal("PRIVACY_UNIT_INVALID rows", found=self.max_rows)

    def spelled(self, key: str) -> str | None:
        """Return a key in its one spelling, from that key alone; None if it is no key."""
        if "nfc" in self.key_normal:  # decomposed first: lower case may change the accents
            key = unicodedata.normalize("NFD", key)
        if "lower" in self.key_normal:
            key = key.casefold()
        if "nfc" in self.key_normal:
            key = unicodedata.normalize("NFC", key)
        if "strip_zeros" in self.key_normal:
            key = key.lstrip("0") or "0"
        return key if self.key_pattern is None or re.fullmatch(self.key_pattern, key) else None
