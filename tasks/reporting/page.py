"""What the page of the orchestrator shows about a run, as Markdown made of public facts alone."""

from __future__ import annotations

from decimal import Decimal

from privacy.ledger import Balance
from storage.releases.manifest import Manifest
from tasks.reporting.guarantee import Claim, guarantee_statement
from tasks.reporting.markup import markdown


def percent_left(balance: Balance) -> int:
    """Return what is left of the lifetime cap, in whole percent, rounded down."""
    if not balance.cap_rho:
        return 0
    return int(100 * balance.remaining_rho / balance.cap_rho)


def budget_page(dataset: str, balance: Balance, *, release_rho: Decimal) -> str:
    """Return what the patients of a dataset have spent and what is left."""
    cap = "none recorded yet" if balance.cap_rho is None else f"{balance.cap_rho:f}"
    return "\n".join(
        (
            f"# Budget of {markdown(dataset)}",
            "",
            "| | rho |",
            "|---|---|",
            f"| lifetime cap | {cap} |",
            f"| spent | {balance.spent_rho:f} |",
            f"| left | {balance.remaining_rho:f} ({percent_left(balance)} %) |",
            f"| one release | {release_rho:f} |",
            "",
            f"**Releases left: {balance.releases_left(release_rho)}** like this one. Budget never "
            "comes back.",
        )
    )


def guarantee_page(manifest: Manifest) -> str:
    """Return the guarantee of a release in plain words, with its numbers."""
    return "\n".join(
        (
            f"# Guarantee of {markdown(manifest.ref)}",
            "",
            markdown(guarantee_statement(Claim.of(manifest))),
            "",
            "| | |",
            "|---|---|",
            f"| epsilon | {manifest.epsilon:.6g} |",
            f"| delta | {manifest.delta:g} |",
            f"| neighbours | {markdown(manifest.adjacency)} |",
            f"| unit | {markdown(manifest.privacy_unit)} |",
            f"| synthetic rows | {manifest.rows:,} |",
            f"| entry of the ledger | {markdown(manifest.ledger_entry)} |",
        )
    )


def gate_page(manifest: Manifest) -> str:
    """Return what the gate has checked of the synthetic rows."""
    lines = [f"# Gate of {markdown(manifest.ref)}", ""]
    lines += ["| check | result | distance | largest allowed |", "|---|---|---|---|"]
    lines += [
        f"| {markdown(record.check)} | {'passed' if record.passed else 'FAILED'} | "
        f"{_shown(record.distance)} | {_shown(record.bound)} |"
        for record in manifest.gate
    ]
    return "\n".join(lines)


def waiting_page(manifest: Manifest, folder: str) -> str:
    """Return what an officer has to do about a release that waits."""
    ref, release_id = markdown(manifest.ref), manifest.release_id
    return "\n".join(
        (
            f"# {ref} waits for an officer",
            "",
            "Nothing is published before an officer, who is not the person who asked, has signed. "
            f"The report to read is `report.html` in `{folder}`.",
            "",
            "On the machine of the pipeline:",
            "",
            "```sh",
            f'clustmix approve {release_id} --key officer.key --reason "..."',
            f'clustmix reject {release_id} --key officer.key --reason "..."',
            "```",
            "",
            "Elsewhere, with a copy of that folder (here `COPY`). What it prints is pasted into "
            "the form of the deployment publish/on-demand:",
            "",
            "```sh",
            'clustmix sign COPY --decision approve --key officer.key --reason "..."',
            "```",
        )
    )


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"
