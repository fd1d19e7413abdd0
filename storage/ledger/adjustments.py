"""What two officers signed when they entered a charge by hand, kept for an auditor."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import StringConstraints, model_validator

from privacy.charges import check_text, checked_rho
from privacy.errors import IntegrityError
from privacy.ledger import EntryState, LedgerEntry, check_signers
from storage.files.documents import Document, Record, Text
from storage.files.private import ensure_private_directory, fsync_directory, write_durably
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.signatures import SignedDocument


class AdjustmentStatement(Record):
    """A charge that is entered by hand.

    `entry_id` is the entry of the ledger that it becomes, so that a signature holds for one charge;
    `cohort` are the patients who pay, `rho` is the amount as the ledger writes it, with 12
    decimals, and `decided_on` a UTC date.
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
        """What was decided."""
        return self.signed[0].statement

    @property
    def signers(self) -> tuple[str, str]:
        """Key ids of the two officers."""
        return self.signed[0].key_id, self.signed[1].key_id

    def verify(self, entry: LedgerEntry, *, officers: Sequence[PublicKey]) -> None:
        """Check that two officers signed what an entry of the ledger says (IntegrityError)."""
        for signature in self.signed:
            signature.verify(officers)
        said = self.statement
        stated = (said.entry_id, said.cohort, said.rho, said.reason, self.signers)
        found = (entry.entry_id, entry.cohort, f"{entry.rho:f}", entry.note, entry.signers)
        if entry.state is not EntryState.ADJUSTED or stated != found:
            raise IntegrityError(
                "ADJUSTMENT_MISMATCH",
                f"expected entry {entry.entry_id} to be what two officers signed, found another "
                "charge; find out who entered it",
            )


def sign_adjustment(
    *, entry_id: str, cohort: str, rho: Decimal, reason: str, keys: Sequence[SigningKey]
) -> Adjustment:
    """Have two officers sign a charge with two keys (LedgerError); see `LedgerDatabase.adjust`."""
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
    """Keep what was signed and return its file ``<entry_id>.json``; on disk when the call returns.

    It has mode 0600 in a folder of mode 0700. Written before the row of the ledger: a file without
    a row was never charged, its run died in between. There is one for an entry (IntegrityError).
    """
    path = ensure_private_directory(folder) / f"{adjustment.statement.entry_id}.json"
    write_durably(path, adjustment.to_bytes())
    fsync_directory(folder)
    return path
