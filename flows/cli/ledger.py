"""The commands of ``clustmix ledger``."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flows.cli import terminal
from flows.cli.options import Commands, argument, option
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from privacy.ledger import LedgerEntry
    from storage.ledger.ledger_db import LedgerDatabase

app = Commands(
    name="ledger",
    help="Show or verify the budget ledger.\n\nShow what each dataset has spent of its budget, or "
    "verify the ledger. Amounts are in rho, which adds up over releases; epsilon does not.",
)


@app.command()
def show(cohort: Annotated[str | None, option("NAME", "show this cohort only")] = None) -> None:
    """List releases, spent and remaining budget.

    By cohort: its lifetime cap, what is spent and left (in rho), and every release with its state.
    All states but void count as spent. The ledger is verified before.
    """
    database = _verified_ledger()
    entries = database.entries(cohort)
    balances = {name: database.balance(name) for name in sorted({e.cohort for e in entries})}
    amounts = ("spent_rho", "cap_rho", "remaining_rho")
    left = {
        name: {amount: getattr(balance, amount) for amount in amounts}
        for name, balance in balances.items()
    }

    def show_all() -> None:
        if not entries:
            terminal.line("no entries")
        for name, balance in balances.items():
            terminal.line(name, style="bold")
            if balance.cap_rho is not None:
                terminal.line(f"  lifetime cap  rho {balance.cap_rho:f}")
            terminal.line(f"  spent         rho {balance.spent_rho:f}")
            terminal.line(f"  left          rho {balance.remaining_rho:f}")
            terminal.table(
                [
                    (e.release_id or "-", e.state, *_stated(e), f"{e.rho:f}")
                    for e in entries
                    if e.cohort == name
                ],
                ("release", "state", ">epsilon", ">delta", ">rho"),
            )

    terminal.answer({"balances": left, "entries": entries}, show_all)


@app.command()
def verify(
    head: Annotated[
        str | None, option("ROWS:HASH", "head that was kept before: the ledger must hold it")
    ] = None,
) -> None:
    """Check the hash chain, every state and every amount.

    Every cap is checked too, and that the head that was exported last is there. Prints the number
    of rows and the hash of the last one: keep it on another machine.
    """
    rows, found = _verified_ledger(None if head is None else _head(head)).head()
    terminal.answer(
        {"verified": True, "rows": rows, "head": found},
        {"Verified": f"{rows} rows", "Head": terminal.Whole(f"{rows}:{found}")},
    )


@app.command()
def export(output: Annotated[Path, argument("FILE", "file to write, not there yet")]) -> None:
    """Write every row for an auditor.

    Each is one line of JSON, with its hash. The ledger is verified before.
    """
    rows = _verified_ledger().history()
    with output.open("x", encoding="utf-8") as handle:
        for row in rows:
            handle.write(json.dumps(terminal.plain(row), ensure_ascii=False) + "\n")
    terminal.answer(
        {"output": str(output), "rows": len(rows)}, f"wrote {len(rows)} rows to {output}"
    )


@app.command()
def adjust(
    cohort: Annotated[str, argument("COHORT", "cohort that is charged")],
    *,
    rho: Annotated[str, option("RHO", "amount, at most 12 decimals")],
    reason: Annotated[str, option("TEXT", "reason, in one line")],
    key: Annotated[
        list[Path], option("FILE", "private key of an officer; give it twice, for two officers")
    ],
) -> None:
    """Add a charge by hand, by two people.

    Charge a cohort for something that no release of this ledger was, such as a table that left by
    another way. Two officers sign; nothing is ever given back.
    """
    from storage.keys.key_store import KeyStore
    from storage.keys.keys import SigningKey
    from storage.ledger.adjustments import keep_adjustment, sign_adjustment
    from storage.ledger.ledger_db import new_entry_id
    from storage.settings import load_settings

    settings = load_settings()
    officers = KeyStore(settings.key_folder)
    keys = [SigningKey.read(path) for path in key]
    for signer in keys:
        officers.require_officer(signer.key_id)
    database = _verified_ledger()
    try:
        amount = Decimal(rho)
    except InvalidOperation:
        raise ConfigurationError(
            "RHO_INVALID", f"expected a decimal number, found {rho[:40]!r}"
        ) from None
    adjustment = sign_adjustment(
        entry_id=new_entry_id(), cohort=cohort, rho=amount, reason=reason, keys=keys
    )
    # The signatures are on disk before the ledger names the signers.
    file = keep_adjustment(settings.adjustments, adjustment)
    entry = database.adjust(
        cohort=cohort,
        rho=amount,
        reason=reason,
        signers=adjustment.signers,
        entry_id=adjustment.statement.entry_id,
    )
    terminal.answer(
        entry,
        f"charged rho {entry.rho:f} to {entry.cohort}: entry {entry.entry_id}",
        f"what was signed: {file}",
    )


def _stated(entry: LedgerEntry) -> tuple[str, str]:
    """Return epsilon and delta as text; an adjustment is no release and has none."""
    if math.isfinite(entry.epsilon):
        return f"{entry.epsilon:g}", f"{entry.delta:g}"
    return "-", "-"


def _verified_ledger(expected_head: tuple[int, str] | None = None) -> LedgerDatabase:
    from storage.settings import load_settings, open_ledger

    settings = load_settings()
    if settings.ledger_url is None and not settings.ledger_path.exists():
        raise ConfigurationError(
            "NO_LEDGER",
            f"expected a ledger at {settings.ledger_path}, found none; the first release makes "
            "it, in the folder that CLUSTMIX_HOME names",
        )
    database = open_ledger(settings)
    database.verify(expected_head=expected_head)
    return database


def _head(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise ConfigurationError(
            "HEAD_INVALID",
            "expected ROWS:HASH as clustmix ledger verify prints it, found something else",
        )
    return int(match[1]), match[2]
