"""A bundle that somebody has published: checked offline, then read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clustmix.guarantee import Charged, Guarantee
from privacy.parameters import Adjacency

if TYPE_CHECKING:
    import pandas as pd

    from storage.releases.bundles import VerifiedBundle
    from tasks.reporting.released_teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A published release whose files and numbers agree with its signed manifest.

    Parameters
    ----------
    verified
        The manifest, and who signed what.
    revocations_checked
        Whether a list of revoked releases was at hand.

    Examples
    --------
    >>> import clustmix
    >>> clustmix.verify("no-such-folder", keys=[])
    Traceback (most recent call last):
    privacy.errors.ConfigurationError: NO_PUBLIC_KEY: expected the public key of the publisher, ...
    """

    verified: VerifiedBundle
    revocations_checked: bool

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the release, computed anew from its events."""
        from privacy.events import event_from_dict

        manifest = self.verified.manifest
        return Guarantee(
            events=tuple(event_from_dict(event) for event in manifest.events),
            delta=manifest.delta,
            adjacency=Adjacency(manifest.adjacency),
            privacy_unit=manifest.privacy_unit,
            max_rows_per_patient=manifest.max_rows_per_patient,
            charged=Charged(entry=manifest.ledger_entry),
            tainted=manifest.tainted,
        )

    def rows(self) -> pd.DataFrame:
        """Return the synthetic rows."""
        import pandas as pd

        return pd.read_parquet(self.verified.path / "synthetic.parquet")

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the synthetic patients and the tables of events, by name."""
        import json

        import pandas as pd

        folder = self.verified.path
        declared = json.loads((folder / "schema.json").read_bytes()).get("events", ())
        names = {"patients": "synthetic", **{one["name"]: one["name"] for one in declared}}
        return {one: pd.read_parquet(folder / f"{name}.parquet") for one, name in names.items()}

    def teacher(self) -> Teacher:
        """Return the classifier of images, under the same guarantee; ConfigurationError if none."""
        from tasks.reporting.released_teacher import Teacher
        from tasks.reporting.teacher_files import TEACHER_FILE, no_teacher

        if TEACHER_FILE not in self.verified.manifest.files:
            raise no_teacher()
        return Teacher.from_bytes((self.verified.path / TEACHER_FILE).read_bytes())


def verify(
    bundle: str | Path,
    *,
    keys: Sequence[str | Path],
    officers: Sequence[str | Path] | None = None,
    revoked: str | Path | None = None,
) -> Bundle:
    """Check a published bundle with nothing but the bundle and public keys, as the command does.

    Parameters
    ----------
    bundle
        Folder of the bundle.
    keys
        Public keys, or folders of them, of the pipeline that publishes.
    officers
        Those of the officers who may approve; those of the pipeline if left out.
    revoked
        List of revoked releases; the one beside the bundle's store if left out, where there is one.

    Raises
    ------
    ConfigurationError
        If a key is missing or cannot be read.
    IntegrityError
        If anything does not agree, or the release was taken back; see
        `storage.releases.bundles.verify_bundle`.
    """
    from storage.keys.key_store import read_public_keys
    from storage.releases.bundles import verify_bundle
    from storage.releases.revocations import list_beside, read_revocations

    path = Path(bundle)
    trusted = read_public_keys(map(Path, keys))
    verified = verify_bundle(
        path,
        trusted=trusted,
        officers=None if officers is None else read_public_keys(map(Path, officers)),
    )
    place = list_beside(path) if revoked is None else Path(revoked)
    if place is not None:
        read_revocations(place, trusted=trusted).require_not_revoked(verified)
    return Bundle(verified=verified, revocations_checked=place is not None)
