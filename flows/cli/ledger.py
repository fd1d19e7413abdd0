"""The commands of ``clustmix ledger``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flows.cli import terminal
from flows.cli.options import Commands, argument, load_settings, option
from privacy.errors import IntegrityError, refusals

if TYPE_CHECKING:
    from privacy.ledger import Balance, LedgerEntry
    from storage.keys.keys import SigningKey
    from storage.ledger.ledger_db import LedgerDatabase

refusal = refusals(__package__)

app = Commands(
    name="ledger",
    help="Show or verify the budget ledger.\n\nShow what each dataset has spent of its budget, or "
    "verify the ledger. Amounts are kept in rho (--verbose), which adds up over releases.",
)


@app.command()
def show(
    *,
    cohort: Annotated[str | None, option("NAME", "show this cohort only")] = None,
    verbose: Annotated[
        bool, option(None, "amounts in rho, and entries that cost nothing", "--verbose")
    ] = False,
) -> None:
    """List releases and the remaining budget.

    By cohort: the share of its lifetime cap that is left, the number of releases like the last one
    that fit, and every release with its state. The ledger is verified before.
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
            own = [e for e in entries if e.cohort == name]
            shown = [e for e in own if verbose or e.counts]
            for text in _left(database, own, balance):
                terminal.line(text)
            if verbose:
                cap = "none" if balance.cap_rho is None else f"{balance.cap_rho:f}"
                terminal.line(f"  rho {balance.spent_rho:f} spent, lifetime cap {cap}")
            rows = [(e.release_id or "-", e.state, *_stated(e), f"{e.rho:f}") for e in shown]
            header = ("release", "state", ">epsilon", ">delta", ">rho")
            n_shown = len(header) - (not verbose)
            terminal.table([row[:n_shown] for row in rows], header[:n_shown])
            if len(shown) < len(own):
                terminal.line(f"  {len(own) - len(shown)} that cost nothing (--verbose lists them)")

    terminal.answer({"balances": left, "entries": entries}, show_all)


def _left(database: LedgerDatabase, own: list[LedgerEntry], balance: Balance) -> Iterator[str]:
    """Yield the share of a cap that is left, and the number of releases like the last one."""
    from privacy.calibration import affordable_epsilon

    if balance.cap_rho is not None:
        share = float(balance.remaining_rho / balance.cap_rho)
        yield f"  {terminal.bar(share)} {math.floor(100 * share)} % left"
    last = next((e for e in reversed(own) if math.isfinite(e.epsilon)), None)
    if last is not None:
        rest = database.balance(last.cohort, dataset=last.dataset, partition=last.partition)
        count = rest.releases_left(last.rho)
        most = affordable_epsilon(rest.remaining_rho, delta=last.delta, adjacency=last.adjacency)
        yield (
            f"  {count} more release{'s' * (count != 1)} at epsilon {last.epsilon:g}, or one at "
            f"{most:g} (delta {last.delta:g})"
        )


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
    from storage.ledger.ledger_db import new_entry_id

    keys = _officers(key)
    database = _verified_ledger()
    try:
        amount = Decimal(rho)
    except InvalidOperation:
        raise refusal("RHO_INVALID", found=rho[:40]) from None
    statement = {"entry_id": new_entry_id(), "cohort": cohort, "rho": amount, "reason": reason}
    file, entry = _entered(database, keys, statement)
    terminal.answer(
        entry,
        f"charged rho {entry.rho:f} to {entry.cohort}: entry {entry.entry_id}",
        f"what was signed: {file}",
    )


@app.command()
def restore(
    key: Annotated[
        list[Path] | None,
        option("FILE", "private key of an officer; give it twice, to charge what is listed"),
    ] = None,
) -> None:
    """List what a ledger from a backup lacks; two officers charge it.

    It lacks the charge of every bundle and sealed measurement here that it has no entry for. With
    the keys of two officers each is entered as an adjustment, and the head is exported anew; a head
    that the ledger lacks has to be moved away before. Runs that burned leave nothing here to list.
    In place of a register of patients that is lost or older than the ledger, they begin another.
    """
    from privacy.ledger import EntryState, check_signers
    from storage.keys.key_store import KeyStore
    from storage.ledger.ledger_db import HeadFile
    from storage.ledger.register import begin_register, open_register
    from storage.releases.measurements import MeasurementStore, unknown_charges
    from storage.releases.release_store import ReleaseStore
    from storage.settings import installation_id

    settings, keys = load_settings(), _officers(key or [])
    database = _verified_ledger(with_head=False)
    stores = MeasurementStore(settings.measurements), ReleaseStore(settings.releases)
    lacking = unknown_charges(*stores, database.entries)
    exported, (rows, _) = HeadFile(settings.ledger_head_path).read(), database.head()
    if keys:
        check_signers(None, EntryState.ADJUSTED, [signer.key_id for signer in keys])
        database = _verified_ledger()
        for each in lacking:
            # Signed by an attempt that ended before the ledger had it.
            (settings.adjustments / f"{each.entry_id}.json").unlink(missing_ok=True)
            charge = {"entry_id": each.entry_id, "cohort": each.cohort, "rho": each.rho}
            reason = f"restored: release {each.release_id}"
            _entered(database, keys, {**charge, "reason": reason})
        database.export_head()
        known = KeyStore(settings.key_folder).ledger_secret(), database.history()
        try:
            open_register(settings.register, *known, owner=installation_id(settings.home))
        except IntegrityError:
            begin_register(settings.register)
    written = "gone" if exported is None else f"row {exported[0]}"
    terminal.answer(
        {"lacking": lacking, "rows": rows, "exported_head": exported, "charged": bool(keys)},
        f"the ledger has {rows} rows; the exported head: {written}",
        f"bundles and sealed measurements that it lacks{', now charged' if keys else ''}:",
        lambda: terminal.table(
            [(each.release_id, each.cohort, f"{each.rho:f}") for each in lacking],
            ("release", "cohort", ">rho"),
        ),
    )


def _entered(
    database: LedgerDatabase, keys: list[SigningKey], statement: dict[str, Any]
) -> tuple[Path, LedgerEntry]:
    """Sign a charge with the keys of two officers and enter it; return the file and the entry."""
    from storage.ledger.adjustments import keep_adjustment, sign_adjustment

    adjustment = sign_adjustment(keys=keys, **statement)
    # The signatures are on disk before the ledger names the signers.
    file = keep_adjustment(load_settings().adjustments, adjustment)
    return file, database.adjust(signers=adjustment.signers, **statement)


def _officers(paths: list[Path]) -> list[SigningKey]:
    from storage.keys.key_store import KeyStore
    from storage.keys.keys import SigningKey

    store, keys = KeyStore(load_settings().key_folder), [SigningKey.read(path) for path in paths]
    for signer in keys:
        store.require_officer(signer.key_id)
    return keys


def _stated(entry: LedgerEntry) -> tuple[str, str]:
    """Return epsilon and delta as text; an adjustment is no release and has none."""
    if math.isfinite(entry.epsilon):
        return f"{entry.epsilon:g}", f"{entry.delta:g}"
    return "-", "-"


def _verified_ledger(
    expected_head: tuple[int, str] | None = None, *, with_head: bool = True
) -> LedgerDatabase:
    """Open the ledger and verify it, against the head that was exported last if `with_head`."""
    from storage.ledger.ledger_db import LedgerDatabase
    from storage.settings import open_ledger

    settings = load_settings()
    if settings.ledger_url is None and not settings.ledger_path.exists():
        raise refusal("NO_LEDGER", path=settings.ledger_path)
    database = open_ledger(settings) if with_head else LedgerDatabase(settings.ledger_location)
    database.verify(expected_head=expected_head)
    return database


def _head(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise refusal("HEAD_INVALID")
    return int(match[1]), match[2]
