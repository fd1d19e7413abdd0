"""Charges entered by hand, with the signatures of two officers, kept for an auditor."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import StringConstraints, model_validator

from privacy.charges import check_text, checked_rho
from privacy.errors import refusals
from privacy.ledger import EntryState, LedgerEntry, check_signers
from storage.files.documents import Document, Record, Text
from storage.files.private import ensure_private_directory, fsync_directory, write_durably
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.signatures import SignedDocument

refusal = refusals(__package__)


class AdjustmentStatement(Record):
    """A charge entered by hand.

    `entry_id` names its entry in the ledger, so that a signature holds for one charge. `cohort` are
    the patients who pay, `rho` has 12 decimals, as in the ledger, and `decided_on` is a UTC date.
    """

    entry_id: Annotated[str, StringConstraints(pattern="^e-[0-9a-f]{16}$")]
    cohort: Text
    rho: Annotated[str, StringConstraints(pattern="^[0-9]{1,9}[.][0-9]{12}$")]
    reason: Text
    decided_on: date


class SignedAdjustment(SignedDocument):
    """The statement with the signature of one officer."""

    FILE: ClassVar[str] = "of the adjustment"
    REMEDY: ClassVar[str] = "find out who wrote to it"
    DOMAIN: ClassVar[bytes] = b"clustmix-adjustment-v1\0"

    format_version: Literal[1] = 1
    statement: AdjustmentStatement


class Adjustment(Document):
    """The statement, signed by each of two officers with different keys: ``<entry_id>.json``."""

    FILE: ClassVar[str] = "of the adjustment"
    MAX_BYTES: ClassVar[int] = 100_000
    CODE: ClassVar[str] = "ADJUSTMENT_INVALID"
    REMEDY: ClassVar[str] = "find out who wrote to it"

    format_version: Literal[1] = 1
    signed: tuple[SignedAdjustment, SignedAdjustment]

    @model_validator(mode="after")
    def _by_two(self) -> Self:
        first, second = self.signed
        if first.statement != second.statement:
            raise ValueError("expected one statement, found two")
        if first.key_id == second.key_id:
            raise ValueError("expected the signatures of two keys, found one")
        return self

    @property
    def statement(self) -> AdjustmentStatement:
        """The charge that both signed."""
        return self.signed[0].statement

    @property
    def signers(self) -> tuple[str, str]:
        """Key ids of the two officers."""
        return self.signed[0].key_id, self.signed[1].key_id

    def verify(self, entry: LedgerEntry, *, officers: Sequence[PublicKey]) -> None:
        """Check that two officers signed an entry of the ledger (IntegrityError)."""
        for signature in self.signed:
            signature.verify(officers)
        signed = self.statement
        stated = (signed.entry_id, signed.cohort, signed.rho, signed.reason, self.signers)
        found = (entry.entry_id, entry.cohort, f"{entry.rho:f}", entry.note, entry.signers)
        if entry.state is not EntryState.ADJUSTED or stated != found:
            raise refusal("ADJUSTMENT_MISMATCH", entry=entry.entry_id)


def sign_adjustment(
    *, entry_id: str, cohort: str, rho: Decimal, reason: str, keys: Sequence[SigningKey]
) -> Adjustment:
    """Sign a charge with the keys of two officers (LedgerError); see `LedgerDatabase.adjust`."""
    amount = checked_rho(rho)
    for name, text in (("cohort", cohort), ("reason", reason)):
        check_text(name, text)
    check_signers(None, EntryState.ADJUSTED, [key.key_id for key in keys])
    statement = AdjustmentStatement(
        entry_id=entry_id,
        cohort=cohort,
        rho=f"{amount:f}",
        reason=reason,
        decided_on=datetime.now(UTC).date(),
    )
    first, second = (SignedAdjustment.signed(key, statement=statement) for key in keys)
    return Adjustment(signed=(first, second))


def keep_adjustment(folder: Path, adjustment: Adjustment) -> Path:
    """Write an adjustment to ``<entry_id>.json`` and return the path; on disk at return.

    The file has mode 0600, in a folder of mode 0700. It is written before the row of the ledger: a
    file without a row was never charged. A second file for an entry is an IntegrityError.
    """
    path = ensure_private_directory(folder) / f"{adjustment.statement.entry_id}.json"
    write_durably(path, adjustment.to_bytes())
    fsync_directory(folder)
    return path
