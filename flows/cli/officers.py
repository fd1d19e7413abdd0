"""Decisions of officers: ``approve``, ``revoke`` and ``sign``; and ``keygen``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.options import Bundle, Commands, OfficerKey, Reason, ReleaseId, argument, option
from flows.cli.publishing import publishing, show_outcome

app = Commands()


@app.command()
def approve(
    release: ReleaseId,
    *,
    key: OfficerKey,
    reason: Reason,
    reject: Annotated[
        bool, option(None, "withhold the release instead; its charge stands", "--reject")
    ] = False,
) -> None:
    """Sign and publish a release that waits, or reject it.

    The officer's key is not that of the requester; its public half is in the folder officers of the
    installation's keys. The reason is published with the signature.
    """
    from flows.decisions import decide
    from flows.publication import ReleaseOutcome
    from storage.keys.keys import SigningKey

    signer = SigningKey.read(key)
    with publishing() as here:
        decision: Literal["approve", "reject"] = "reject" if reject else "approve"
        decided = decide(here.publisher, release, key=signer, decision=decision, reason=reason)
    if isinstance(decided, ReleaseOutcome):
        show_outcome(decided, explain=True)
    else:
        withheld = f"withheld {decided.dataset}/{decided.release_id}; its charge stands"
        terminal.answer(decided, withheld)


@app.command()
def revoke(release: ReleaseId, *, key: OfficerKey, reason: Reason) -> None:
    """Take a published release back.

    It is added to the signed list of revocations in the release store, with every resample of it,
    and the ledger records it. A resample can be revoked by itself. clustmix verify refuses every
    release on the list. No file is removed and nothing is given back. The reason is published.
    """
    from flows.decisions import revoke as take_back
    from storage.keys.keys import SigningKey

    signer = SigningKey.read(key)
    with publishing() as here:
        outcome = take_back(here.publisher, release, key=signer, reason=reason)
    terminal.answer(
        outcome.model_dump(mode="json"),
        *(f"revoked {listed}" for listed in outcome.listed),
        *(f"was revoked before: {listed}" for listed in outcome.listed_before),
        f"{'List:':<12}{outcome.list_file}",
        *(f"{'Remove:':<12}{bundle}" for bundle in outcome.bundles),
    )


@app.command()
def sign(
    bundle: Bundle,
    *,
    decision: Annotated[Literal["approve", "reject"], option(None, "the decision")],
    key: OfficerKey,
    reason: Reason,
) -> None:
    """Sign a decision to be carried out elsewhere.

    It needs a copy of the release's folder and the officer's key alone, and prints the signed
    decision for the form of the deployment publish/on-demand, on the page of the orchestrator.
    """
    from flows.decisions import sign as sign_decision
    from storage.keys.keys import SigningKey

    signed = sign_decision(bundle, key=SigningKey.read(key), decision=decision, reason=reason)
    typer.echo(signed.to_bytes().decode("utf-8"), nl=False)  # JSON for everybody


@app.command()
def keygen(file: Annotated[Path, argument("FILE", "private key to write")]) -> None:
    """Make a pair of Ed25519 keys.

    FILE is for its owner alone, and FILE with the suffix .pub for everybody.
    """
    from storage.keys.keys import SigningKey

    key, public = SigningKey.create(file), file.with_suffix(".pub")
    terminal.answer(
        {"private": str(file), "public": str(public), "key_id": key.key_id},
        f"wrote {file} (keep it) and {public} (give it away)",
        f"key id {key.key_id}",
    )
