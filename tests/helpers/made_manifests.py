"""Keys of people, and manifests of releases that nobody made."""

from datetime import date

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.events import Composed, Gaussian, event_to_dict
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.files.documents import digest_of
from storage.keys.keys import SigningKey
from storage.releases.manifest import GateRecord, Manifest, MethodRecord
from storage.releases.revocations import Revocation

EVENTS = tuple(
    Gaussian(statistic=name, l2_sensitivity=1000.0, noise_stddev=stddev, n_values=10)
    for name, stddev in (("sums", 5000.0), ("moments", 7000.0))
)
SHA = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""SHA-256 of ``abc``."""


def key_of(number):
    return SigningKey(private=Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def fields_of(made_of=EVENTS, **changes):
    event = Composed(events=made_of)
    total = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    replaced = GaussianAccountant(adjacency=Adjacency.REPLACE_ONE).compose(event)
    fields = {
        "dataset": "adult",
        "release_id": "r-20250131-0f3a9c21",
        "created_on": date(2025, 1, 31),
        "guarantee": "Ein Satz über die Garantie.",
        "method": MethodRecord(name="clustmix", settings={"clusters": 4}),
        "request": {"epsilon": 1.0},
        "code_version": "0.1.0",
        "events": tuple(map(event_to_dict, made_of)),
        "mu": total.mu,
        "rho": total.rho,
        "epsilon": total.epsilon(delta=1e-6),
        "delta": 1e-6,
        "replace_one_epsilon": replaced.epsilon(delta=1e-6),
        "adjacency": "add_remove",
        "privacy_unit": "patient_nbr",
        "max_rows_per_patient": 5,
        "ledger_entry": "17",
        "gate": (GateRecord(check="schema", passed=True),),
        "rows": 1000,
        "tainted": False,
        "measurement_sha256": SHA,
        "needs_approval": False,
        "requester": None,
        "files": {"synthetic.csv": digest_of(b"abc")},
    }
    return {**fields, **changes}


def manifest_of(made_of=EVENTS, **changes):
    return Manifest(**fields_of(made_of, **changes))


def revocation(number, **changes):
    fields = {
        "dataset": "adult",
        "release_id": f"r-20250131-{number:08x}",
        "ledger_entry": "e-0123456789abcdef",
        "manifest_sha256": f"{number:064x}",
        "reason": "Bounds were taken from the rows.",
        "revoked_by": key_of(2).key_id,
        "revoked_on": date(2025, 2, 1),
    }
    return Revocation(**{**fields, **changes})
