"""What the commands of ``clustmix ledger`` do; each returns its exit code."""

from __future__ import annotations

import argparse
import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from flows.cli import terminal
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from storage.ledger.ledger_db import LedgerDatabase
    from storage.settings import Settings


def show(options: argparse.Namespace) -> int:
    """List releases, spent and remaining budget."""
    ledger = _verified_ledger()
    entries = ledger.entries(options.cohort)
    cohorts = sorted({entry.cohort for entry in entries})
    balances = {name: ledger.balance(name) for name in cohorts}
    if options.json:
        terminal.print_json(terminal.ledger_as_json(entries, balances))
    else:
        terminal.ledger(entries, balances)
    return 0


def verify(options: argparse.Namespace) -> int:
    """Check the ledger, and that it holds a head that was kept."""
    expected = None if options.head is None else _head(options.head)
    ledger = _verified_ledger(expected)
    sequence, head = ledger.head()
    if options.json:
        terminal.print_json({"verified": True, "rows": sequence, "head": head})
    else:
        terminal.paragraph("Verified", f"{sequence} rows")
        terminal.paragraph("Head", f"{sequence}:{head}")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write every row as JSON."""
    rows = _verified_ledger().history()
    try:
        with options.output.open("x", encoding="utf-8") as handle:
            for row in rows:
                handle.write(json.dumps(terminal.ledger_row(row), ensure_ascii=False) + "\n")
    except FileExistsError:
        raise ConfigurationError(
            "FILE_EXISTS", f"expected no file at {options.output}, found one; name another"
        ) from None
    if options.json:
        terminal.print_json({"output": str(options.output), "rows": len(rows)})
    else:
        terminal.line(f"wrote {len(rows)} rows to {options.output}")
    return 0


def adjust(options: argparse.Namespace) -> int:
    """Add a charge that two officers sign."""
    from storage.keys.keys import KeyStore, SigningKey
    from storage.ledger.adjustments import AdjustmentStore, sign_adjustment
    from storage.ledger.ledger_db import new_entry_id

    settings = _settings()
    officers = KeyStore(settings.key_folder)
    keys = [SigningKey.read(path) for path in options.key]
    for key in keys:
        officers.require_officer(key.key_id)
    ledger = _verified_ledger()
    adjustment = sign_adjustment(
        entry_id=new_entry_id(),
        cohort=options.cohort,
        rho=_rho(options.rho),
        reason=options.reason,
        keys=keys,
    )
    # What was signed is on the disk before the ledger says who signed.
    file = AdjustmentStore(settings.adjustments).write(adjustment)
    entry = ledger.adjust(
        cohort=options.cohort,
        rho=_rho(options.rho),
        reason=options.reason,
        signers=adjustment.signers,
        entry_id=adjustment.statement.entry_id,
    )
    if options.json:
        terminal.print_json(terminal.ledger_row(entry))
    else:
        terminal.line(f"charged rho {entry.rho:f} to {entry.cohort}: entry {entry.entry_id}")
        terminal.line(f"what was signed: {file}")
    return 0


def _settings() -> Settings:
    from storage.settings import load_settings

    return load_settings()


def _verified_ledger(expected_head: tuple[int, str] | None = None) -> LedgerDatabase:
    from tasks.steps.run import Site

    settings = _settings()
    if settings.ledger_url is None and not settings.ledger_path.exists():
        raise ConfigurationError(
            "NO_LEDGER",
            f"expected a ledger at {settings.ledger_path}, found none; the first release makes "
            "it, in the folder that CLUSTMIX_HOME names",
        )
    ledger = Site(settings=settings).ledger
    ledger.verify(expected_head=expected_head)
    return ledger


def _head(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise ConfigurationError(
            "HEAD_INVALID",
            "expected ROWS:HASH as clustmix ledger verify prints it, found something else",
        )
    return int(match[1]), match[2]


def _rho(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ConfigurationError(
            "RHO_INVALID", f"expected a decimal number, found {text[:40]!r}"
        ) from None
