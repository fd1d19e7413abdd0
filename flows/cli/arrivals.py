"""What ``clustmix ready`` does."""

from __future__ import annotations

import argparse

from flows.cli import terminal


def ready(options: argparse.Namespace) -> int:
    """Announce a table that lies in the landing place, or is going to be uploaded to it."""
    from storage.arrivals.ready_files import build_ready_file, write_ready_file
    from storage.keys.key_files import read_secret
    from storage.keys.keys import KeyStore
    from storage.settings import load_settings

    if options.key is None:
        secret = KeyStore(load_settings().key_folder).landing_secret()
    else:
        secret = read_secret(options.key)
    table = options.table.absolute()
    content = build_ready_file(table, dataset=options.dataset, secret=secret)
    written = write_ready_file(table, content)
    if options.json:
        terminal.print_json({"dataset": options.dataset, "ready_file": str(written)})
    else:
        terminal.line(f"announced {table.name} for dataset {options.dataset}: {written}")
    return 0
