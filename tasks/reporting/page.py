"""What the page of the orchestrator shows about a run, as Markdown made of public facts alone."""

from __future__ import annotations

from decimal import Decimal

from privacy.ledger import Balance
from storage.releases.manifest import Manifest
from tasks.reporting.guarantee import Claim
from tasks.reporting.rendering import render


def budget_page(dataset: str, balance: Balance, *, release_rho: Decimal) -> str:
    """Return what the patients of a dataset have spent and what is left."""
    return render("budget.md", dataset=dataset, balance=balance, release_rho=release_rho)


def guarantee_page(manifest: Manifest) -> str:
    """Return the guarantee of a release in plain words, with its numbers."""
    return render("guarantee.md", manifest=manifest, claim=Claim(manifest))


def gate_page(manifest: Manifest) -> str:
    """Return what the gate has checked of the synthetic rows."""
    return render("gate.md", manifest=manifest)


def waiting_page(manifest: Manifest, folder: str) -> str:
    """Return what an officer has to do about a release that waits."""
    return render("waiting.md", manifest=manifest, folder=folder)
