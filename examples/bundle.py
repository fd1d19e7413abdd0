"""Somebody's bundle: ``python examples/bundle.py BUNDLE KEY``, offline, with a public key alone."""

import sys

import clustmix

if len(sys.argv) != 3:
    sys.exit("expected the folder of a bundle and the public key of who publishes it")
folder, key = sys.argv[1:]

# Signature, every file against the manifest, and epsilon computed anew from the recorded events.
bundle = clustmix.verify(folder, keys=[key])
manifest = bundle.verified.manifest
print(f"{manifest.dataset}/{manifest.release_id}, {manifest.method.name}, signed by the key "
      f"{bundle.verified.signer}")  # fmt: skip
if not bundle.revocations_checked:
    print("No list of revoked releases is here: ask whether this one was taken back.")
print(bundle.guarantee)

rows = bundle.rows()
print(f"\n{len(rows):,} synthetic rows:\n{rows.head(3).to_string(index=False)}")
