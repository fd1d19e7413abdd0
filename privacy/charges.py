"""Amounts, caps and charges of the privacy ledger, and parts of a cohort. No I/O.

The currency is ``rho = mu**2 / 2``: it adds up under composition, also when later releases are
chosen in view of earlier ones, as long as the running sum stays under a cap that is fixed in
advance (Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, Decimal

from privacy.errors import ConfigurationError, refusals
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit

refusal = refusals(__package__)

RHO_DECIMALS = 12
RHO_STEP = Decimal(1).scaleb(-RHO_DECIMALS)
"""Unit of the ledger; every amount is a whole number of it."""

MAX_RHO = Decimal(1_000_000)
"""Largest amount; it keeps sums exact within the 28 digits of decimal arithmetic."""

MAX_WINDOW_DAYS = 36_500
MAX_PARTS = 1_000

_KEY_ID = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits on spending, set in advance.

    A cap takes effect with the first entry granted under it, and the smallest cap ever recorded
    holds: it can be lowered and never raised. `lifetime_rho` limits the cohort and `dataset_rho`
    the dataset, both for ever; `window_rho` limits the cohort in any `window_days` consecutive
    days, 1 to 36500, and the smallest holds for each length. None is no cap. It is a
    ConfigurationError if an amount is malformed, or the window incomplete.
    """

    lifetime_rho: Decimal
    dataset_rho: Decimal | None = None
    window_rho: Decimal | None = None
    window_days: int | None = None

    def __post_init__(self) -> None:
        for name in ("lifetime_rho", "dataset_rho", "window_rho"):
            amount = getattr(self, name)
            if amount is not None or name == "lifetime_rho":
                object.__setattr__(self, name, checked_rho(amount))
        if (self.window_rho is None) is not (self.window_days is None) or not (
            self.window_days is None
            or (type(self.window_days) is int and 1 <= self.window_days <= MAX_WINDOW_DAYS)
        ):
            facts = {"most": MAX_WINDOW_DAYS, "rho": self.window_rho, "days": self.window_days}
            raise refusal("WINDOW_INVALID", **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One of several sets of patients; a patient is in at most `at_most` of them.

    By hash, a keyed hash of a patient's own id gives the part: `scheme` names the rule that divides
    patients into 2 to 1000 `parts`, numbered from 0 (ConfigurationError). By entry, `parts` is None
    and `part` a period; each charge is one set, and `register` is the id of the patients' register.
    """

    scheme: str
    parts: int | None
    part: int | str
    at_most: int = 1
    register: str = field(default="", compare=False)

    @property
    def period(self) -> str | None:
        """Period of entry; None for a part by hash."""
        return str(self.part) if self.parts is None else None

    @property
    def split(self) -> tuple[str, int, int, str]:
        """Key shared by the sets of which a patient is in at most `at_most`."""
        return (self.scheme, self.parts or 0, self.at_most, self.register)

    def __post_init__(self) -> None:
        check_text("scheme", self.scheme)
        by_entry = self.parts is None and type(self.part) is str and self.at_most >= 1
        by_hash = (
            type(self.parts) is type(self.part) is int
            and 2 <= self.parts <= MAX_PARTS
            and 0 <= self.part < self.parts
            and self.at_most == 1
        )
        if not by_hash and not by_entry:
            raise refusal("PARTITION_INVALID", most=MAX_PARTS, part=self.part, parts=self.parts)

    def __str__(self) -> str:
        if self.period is not None:
            return f"patients of period {self.part} of scheme {self.scheme!r}"
        return f"part {self.part} of {self.parts} of scheme {self.scheme!r}"


def unit_in_words(unit: PrivacyUnit, partition: Partition | None = None) -> str:
    """Name the unit that one neighbour adds or removes, for the ledger and the release."""
    if unit.column is None:
        return "one row, which is one patient"
    spelling = f" (spelled by {', '.join(unit.key_normal)})" if unit.key_normal else ""
    words = f"one patient, named by column {unit.column}{spelling}"
    if partition is None:
        return words
    if partition.period is not None:
        most = "one" if partition.at_most == 1 else str(partition.at_most)
        return (
            f"{words}, who entered in {partition.part}; each patient is in at most {most} of these "
            "releases"
        )
    return f"{words}, in part {partition.part} of {partition.parts} of the split {partition.scheme}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeColumns:
    """The fields of a charge, which every row of its entry repeats.

    `cohort` are the patients who pay, `dataset` is the series of releases, and `release_id` is
    charged once. `request_key`, 64 hexadecimal digits, is a keyed hash of all that shapes the
    measurement. `rho` is an amount of `charged_rho` and `privacy.calibration.gdp_rho`; `epsilon`,
    `delta` and `unit` are for the record. A smaller cap on record replaces one of `caps`.
    `partition` is the part of the cohort that pays, None for all of it. `owner` is the installation
    that runs the release, `requester` the key id, of 16 hexadecimal digits, of the person who asks.
    """

    cohort: str
    dataset: str
    release_id: str
    request_key: str
    rho: Decimal
    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: str
    caps: Caps
    partition: Partition | None
    owner: str
    requester: str | None
    needs_approval: bool


CHARGE_FIELDS = tuple(field.name for field in fields(ChargeColumns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge(ChargeColumns):
    """A charge for a release.

    It is a ConfigurationError if a value is outside its range, an approval lacks a requester, or a
    part is not charged under add/remove: exchanging patients of two parts changes both parts.
    """

    def __post_init__(self) -> None:
        for name in ("cohort", "dataset", "release_id", "unit", "owner"):
            check_text(name, getattr(self, name))
        PrivacyParameters(epsilon=self.epsilon, delta=self.delta)
        object.__setattr__(self, "rho", checked_rho(self.rho))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        check_digest(self.request_key)
        if self.requester is not None:
            check_key_ids((self.requester,))
        if self.needs_approval and self.requester is None:
            raise refusal("REQUESTER_MISSING")
        if self.partition is not None and self.adjacency is not Adjacency.ADD_REMOVE:
            found = self.adjacency.value
            raise refusal("PARTITION_ADJACENCY", partition=self.partition, found=found)


def charged_rho(rho: float) -> Decimal:
    """Return `rho`, up to `MAX_RHO` (ConfigurationError), rounded up to whole steps."""
    # Decimal(float) is exact; the limit keeps quantize within the precision of the context.
    value = Decimal(rho)
    if not value.is_finite() or not 0 < value <= MAX_RHO:
        raise _invalid_rho(value)
    return checked_rho(value.quantize(RHO_STEP, rounding=ROUND_CEILING))


def checked_rho(rho: Decimal) -> Decimal:
    """Return an amount with twelve decimals: above 0, at most `MAX_RHO` (ConfigurationError)."""
    if (
        not isinstance(rho, Decimal)
        or not rho.is_finite()
        or not 0 < rho <= MAX_RHO
        or rho.quantize(RHO_STEP) != rho
    ):
        raise _invalid_rho(rho)
    return rho.quantize(RHO_STEP)


def _invalid_rho(rho: object) -> ConfigurationError:
    return ConfigurationError(
        "RHO_INVALID",
        f"expected rho as a Decimal above 0 and at most {MAX_RHO} with at most {RHO_DECIMALS} "
        f"decimals, found {rho!r}; round a charge up (charged_rho) and a cap down",
    )


def check_text(name: str, text: str) -> None:
    """Refuse a text that is not one line of 1 to 200 printable characters; names the field."""
    if not (isinstance(text, str) and 0 < len(text) <= 200 and text.isprintable()):
        raise refusal("LEDGER_TEXT_INVALID", name=name, found=text)


def check_digest(digest: str) -> None:
    """Refuse what is not a SHA-256 digest in hexadecimal (ConfigurationError)."""
    if not _DIGEST.fullmatch(digest):
        raise refusal("DIGEST_INVALID")


def check_key_ids(key_ids: Iterable[str]) -> None:
    """Refuse what is not the id of a key, 16 lower-case hexadecimal digits (ConfigurationError)."""
    if not all(isinstance(key_id, str) and _KEY_ID.fullmatch(key_id) for key_id in key_ids):
        raise refusal("KEY_ID_INVALID")
