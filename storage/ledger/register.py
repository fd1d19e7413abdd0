"""The register of an installation: keyed digests of the patients whom runs by entry have read.

One private file beside the ledger. A run adds its patients before it counts a row of theirs; they
stay, however the run ends. The EXECUTING row of a run in the ledger holds the head of the register,
which reveals an older copy. Partitions in the ledger name their register by a random id: a new
register does not know the patients of a lost one, so the charges of the two add up.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import NonNegativeInt

from privacy.charges import ChargeColumns
from privacy.errors import IntegrityError
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import Record, Text
from storage.files.private import open_regular, replace_durably

_DIGEST_BYTES = 16


class _Run(Record):
    entry: Text
    period: Text
    patients: NonNegativeInt


class _Heading(Record):  # the first line of the file; digests follow it, run by run
    register_id: Text
    runs: tuple[_Run, ...] = ()


class PatientRegister:
    """The register, read whole (IntegrityError), and the charge of a run that holds its lock."""

    def __init__(self, path: Path, secret: bytes, charge: ChargeColumns | None = None) -> None:
        self._path, self._secret = path, secret
        self._cohort = "" if charge is None else charge.cohort
        self._part = None if charge is None else charge.partition
        self._chosen = frozenset[bytes]()
        with os.fdopen(open_regular(path), "rb") as handle:
            first, _, rest = handle.read().partition(b"\n")
        try:
            self._heading, ends = _Heading.model_validate_json(first), [0]
            for run in self._heading.runs:
                ends.append(ends[-1] + run.patients * _DIGEST_BYTES)
            if ends[-1] != len(rest):
                raise ValueError("another length")
        except ValueError:
            raise _unusable("REGISTER_DAMAGED", f"{path}, found something else") from None
        self._kept = [rest[begin:end] for begin, end in pairwise(ends)]

    @property
    def register_id(self) -> str:
        """Id in the ledger. It depends on the key: under another key no patient is recognised."""
        own = self._heading.register_id.encode()
        return hashlib.blake2b(own, key=self._secret, digest_size=8).hexdigest()

    @property
    def heads(self) -> tuple[str, ...]:
        """Hash chain: for each run, the hash of all runs up to it and of their patients."""
        last, found = self._heading.register_id, []
        for run, digests in zip(self._heading.runs, self._kept, strict=True):
            last = hashlib.sha256(f"{last}{run.model_dump_json()}".encode() + digests).hexdigest()
            found.append(last)
        return tuple(found)

    def choose(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the patients of a period who may be read; `keep` then records them.

        A patient may be read if this happened fewer than `at_most` times, and not for this period.

        Privacy
        -------
        Whether a patient is chosen depends on what was kept of that patient alone.
        """
        part = self._part
        if part is None:
            raise ValueError("expected a charge by entry")
        wanted = {self._digest(f"{self._cohort}\0{part.scheme}\0{name}"): name for name in names}
        times, here = Counter[bytes](), set[bytes]()
        for run, digests in zip(self._heading.runs, self._kept, strict=True):
            ends = range(0, len(digests), _DIGEST_BYTES)
            known = wanted.keys() & {digests[at : at + _DIGEST_BYTES] for at in ends}
            times.update(known)
            here |= known if run.period == part.part else set()
        chosen = (each for each in wanted if times[each] < part.at_most and each not in here)
        self._chosen = frozenset(chosen)
        return frozenset(wanted[each] for each in self._chosen)

    def keep(self, entry_id: str) -> str:
        """Keep the chosen patients as read by an entry; return the head. On disk at return."""
        period = "" if self._part is None else str(self._part.part)
        run = _Run(entry=entry_id, period=period, patients=len(self._chosen))
        self._heading = self._heading.model_copy(update={"runs": (*self._heading.runs, run)})
        self._kept.append(b"".join(sorted(self._chosen)))
        first = self._heading.model_dump_json().encode() + b"\n"
        replace_durably(self._path, first + b"".join(self._kept))
        return self.heads[-1]

    def _digest(self, text: str) -> bytes:
        data = b"clustmix-register-v1\0" + text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=self._secret, digest_size=_DIGEST_BYTES).digest()


def open_register(
    path: Path,
    secret: bytes,
    rows: Sequence[LedgerEntry],
    *,
    owner: str,
    charge: ChargeColumns | None = None,
) -> PatientRegister:
    """Open the register of a ledger, or begin the first; a lost or older one is refused."""
    by_entry = [row for row in rows if row.partition is not None and row.partition.period]
    if not os.path.lexists(path):
        if any(row.owner == owner for row in by_entry):
            raise _unusable("REGISTER_LOST", f"{path}, found none")
        begin_register(path)
    register = PatientRegister(path, secret, charge)
    named = "" if charge is None or charge.partition is None else charge.partition.register
    if named not in ("", register.register_id):  # officers began another since the charge
        raise _unusable("REGISTER_OLD", f"{path} that was charged, found another")
    heads = {None, *register.heads}
    for row in by_entry:
        known = row.partition is not None and row.partition.register == register.register_id
        if known and (row.digest if row.state is EntryState.EXECUTING else None) not in heads:
            raise _unusable("REGISTER_OLD", f"{path} with {row.release_id}, found an older one")
    return register


def begin_register(path: Path) -> None:
    """Begin a register, in place of another one if there is one."""
    heading = _Heading(register_id=os.urandom(8).hex())
    replace_durably(path, heading.model_dump_json().encode() + b"\n")


def _unusable(code: str, what: str) -> IntegrityError:
    return IntegrityError(
        code,
        f"expected the register of patients at {what}: patients could be read twice; restore its "
        "latest copy, or have two officers begin another, whose charges add up with the earlier "
        "ones (clustmix ledger restore); nothing is charged",
    )
