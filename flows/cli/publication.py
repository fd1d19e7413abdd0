"""What the commands after a release do; each returns its exit code. None reads a table."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flows.cli import terminal
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from flows.publication import ReleaseOutcome
    from tasks.steps.run import Site


def resample(options: argparse.Namespace) -> int:
    """Publish other rows from a sealed measurement."""
    from flows.publication import resample as publish_other_rows

    conditions = {}
    for text in options.where:
        column, mark, level = text.partition("=")
        if not mark or column in conditions:
            raise ConfigurationError(
                "CONDITION_INVALID",
                f"expected COLUMN=LEVEL, each column once, found {text[:80]!r}",
            )
        conditions[column] = level
    outcome = publish_other_rows(_site(), options.release, rows=options.rows, conditions=conditions)
    return _answer(options, outcome)


def publish(options: argparse.Namespace) -> int:
    """Publish a release whose run ended after its seal, or in the order that a site file states."""
    if options.site is None and options.key is None:
        from flows.publication import publish as go_on

        return _answer(options, go_on(_site(), options.release))
    if options.site is None or options.key is None:
        raise ConfigurationError(
            "ORDER_INCOMPLETE",
            "expected --site and --key together: who declares an order is stated in the manifest",
        )
    from flows.declared_order import publish_in_order
    from flows.site.site_file import load_site
    from storage.keys.keys import SigningKey

    key, site_file = SigningKey.read(options.key), load_site(options.site)
    return _answer(options, publish_in_order(_site(), options.release, site_file, key=key))


def approve(options: argparse.Namespace) -> int:
    """Sign a release that waits, and publish it."""
    from flows.approval import approve as publish_signed
    from storage.keys.keys import SigningKey

    key = SigningKey.read(options.key)
    outcome = publish_signed(_site(), options.release, key=key, reason=options.reason)
    return _answer(options, outcome)


def reject(options: argparse.Namespace) -> int:
    """Withhold a release that waits."""
    from flows.approval import reject as withhold
    from storage.keys.keys import SigningKey

    key = SigningKey.read(options.key)
    entry = withhold(_site(), options.release, key=key, reason=options.reason)
    if options.json:
        terminal.print_json(terminal.ledger_row(entry))
    else:
        terminal.line(f"withheld {entry.dataset}/{entry.release_id}; its charge stands")
    return 0


def sign(options: argparse.Namespace) -> int:
    """Sign a decision about a bundle that waits, to be carried out elsewhere."""
    from flows.approval import sign as sign_decision
    from storage.keys.keys import SigningKey

    key = SigningKey.read(options.key)
    signed = sign_decision(
        options.bundle, key=key, decision=options.decision, reason=options.reason
    )
    sys.stdout.write(signed.to_bytes().decode("utf-8"))
    return 0


def revoke(options: argparse.Namespace) -> int:
    """Take a published release back."""
    from flows.revocation import revoke as take_back
    from storage.keys.keys import SigningKey

    key = SigningKey.read(options.key)
    outcome = take_back(_site(), options.release, key=key, reason=options.reason)
    if options.json:
        terminal.print_json(outcome.model_dump(mode="json"))
        return 0
    for release in outcome.listed:
        terminal.line(f"revoked {release}")
    for release in outcome.listed_before:
        terminal.line(f"was revoked before: {release}")
    terminal.line(f"{'List:':<12}{outcome.list_file}")
    for bundle in outcome.bundles:
        terminal.line(f"{'Remove:':<12}{bundle}")
    return 0


def keygen(options: argparse.Namespace) -> int:
    """Make a pair of keys."""
    from storage.keys.keys import SigningKey

    key = SigningKey.create(options.file)
    public = options.file.with_suffix(".pub")
    if options.json:
        terminal.print_json(
            {"private": str(options.file), "public": str(public), "key_id": key.key_id}
        )
    else:
        terminal.line(f"wrote {options.file} (keep it) and {public} (give it away)")
        terminal.line(f"key id {key.key_id}")
    return 0


def certificates(options: argparse.Namespace) -> int:
    """Make the certificates of a Dask cluster."""
    from tasks.execution.cluster_certificates import make_certificates

    make_certificates(options.output, days=options.days)
    if options.json:
        terminal.print_json({"output": str(options.output)})
    else:
        terminal.line(
            f"wrote certificates to {options.output}; docs/operate.md says where each goes"
        )
    return 0


def _site() -> Site:
    from storage.settings import load_settings
    from tasks.steps.run import Site

    return Site(settings=load_settings())


def _answer(options: argparse.Namespace, outcome: ReleaseOutcome) -> int:
    if options.json:
        terminal.print_json(outcome.model_dump())
    else:
        terminal.outcome(outcome)
    return 0
