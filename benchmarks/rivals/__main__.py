"""Run a rival on public data: ``python -m benchmarks.rivals METHOD --dataset SITE``.

SITE is the name of a site file of the benchmarks, or a path; its own method is not read. Rows and
schema are written into a new folder, every file marked "not proven, benchmark only". There is no
ledger entry, no release and no way from here into a release store.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.rivals.registry import PRINTED, RIVALS
from benchmarks.tables import site_document, site_names
from flows.site.site_file import SiteFile, load_site
from privacy.arrays import Codes
from privacy.errors import ClustMixError, ConfigurationError, InputError
from privacy.parameters import PrivacyParameters
from storage.sources.cohorts import CohortReader
from tasks.ingest.contributions import bound_contributions, named_patients
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations
from tasks.reporting.released_images import IMAGES_FILE
from tasks.reporting.tables import SCHEMA_FILE, table_files

MARK_COLUMN = "not_proven"
"""Column of every synthetic row that carries the mark with it."""

MARK = (
    "not proven, benchmark only: no proof covers every step that reads the data. Do not rely on "
    "epsilon and do not release this table."
)
CLAIM_FILE = "claim.json"


def run(
    method: str,
    site: SiteFile,
    *,
    form: str = PRINTED,
    epsilon: float | None = None,
    settings: dict[str, Any] | None = None,
    seed: int | None = None,
    output: Path,
) -> dict[str, Any]:
    """Run a form of a rival on a public table, and write its marked files.

    Returns what is public of them: ``folder``, ``claim``, ``rows``, ``epsilon_claimed``, ``delta``
    and the seconds of each stage. A ConfigurationError refuses what is no public benchmark data,
    and a form or a setting that the rival does not have.
    """
    _check(method, form, site)
    entry = RIVALS[method]
    parameters = PrivacyParameters(
        epsilon=epsilon or site.privacy.epsilon, delta=site.privacy.delta
    )
    chosen = _settings(method, settings)
    rival = entry.build(form, domain_of(site.table_schema), chosen, parameters)
    started = time.perf_counter()
    codes, labels = read_records(site, one_of_each=form != PRINTED)
    read = time.perf_counter()
    rng = np.random.default_rng(seed)
    made = rival.synthesize(codes, labels, rng)
    finished = time.perf_counter()
    frame = decode(*made, site.table_schema, rng=rng)
    folder = output / site.dataset / f"{method}-{form}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    claim = {
        MARK_COLUMN: MARK,
        "method": method,
        "form": form,
        "source": entry.source,
        "settings": dataclasses.asdict(chosen),
        "dataset": site.dataset,
        "epsilon_claimed": parameters.epsilon,
        "delta": parameters.delta,
        "rows": len(frame),
    }
    files = table_files(frame.assign(**{MARK_COLUMN: MARK}), site.table_schema)
    files.pop(IMAGES_FILE, None)  # its rows have no place for a mark
    files[SCHEMA_FILE] = (
        json.dumps({MARK_COLUMN: MARK, **json.loads(files[SCHEMA_FILE])}, indent=2) + "\n"
    ).encode()
    files[CLAIM_FILE] = (json.dumps(claim, indent=2) + "\n").encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    seconds = {"ingest": round(read - started, 3), "paper-method": round(finished - read, 3)}
    named = ("rows", "epsilon_claimed", "delta")
    return {
        "folder": str(folder),
        "claim": MARK,
        **{name: claim[name] for name in named},
        "stage_seconds": seconds,
    }


def _check(method: str, form: str, site: SiteFile) -> None:
    if form not in RIVALS[method].forms:
        raise ConfigurationError(
            "NO_SUCH_FORM",
            f"expected a form of {method} ({', '.join(RIVALS[method].forms)}), found {form!r}",
        )
    if not site.public_benchmark_data:
        raise ConfigurationError(
            "NOT_PUBLIC_DATA",
            "expected public_benchmark_data: true, found a private table; a rival has no "
            "guarantee that holds and reads public data only",
        )
    if site.privacy_unit.visits is not None:
        raise ConfigurationError(
            "VISITS_OF_RIVAL", "expected no privacy_unit.visits: no rival knows them"
        )


def _settings(method: str, given: dict[str, Any] | None) -> Any:
    kind = RIVALS[method].settings_class()
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(given or {}) - known):
        raise ConfigurationError(
            "SETTING_UNKNOWN",
            f"expected settings of {method} ({', '.join(sorted(known))}), found {unknown[0]!r}",
        )
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in (given or {}).items()})


def read_records(site: SiteFile, *, one_of_each: bool) -> tuple[Codes, Codes]:
    """Read and encode the records of a public table; of each patient one, if wanted."""
    chunks = CohortReader(site.source).chunks(site.columns_to_read)
    frame = pd.concat(list(chunks), ignore_index=True)
    coded = encode_chunk(frame, site.table_schema)
    refuse_violations(coded.violations)
    keep = coded.valid.copy()
    if one_of_each and site.unit.column is not None:
        records = np.column_stack([coded.codes, coded.label])[keep]
        named = named_patients(frame[site.unit.column][keep])
        keep[keep] = bound_contributions(*named, records, 1)[0]
    if not keep.any():
        raise InputError("EMPTY_TABLE", "expected rows in the source, found none")
    return coded.codes[keep], coded.label[keep]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.rivals", description=__doc__)
    parser.add_argument("method", choices=RIVALS)
    parser.add_argument("--dataset", required=True, help="name or path of a site file")
    parser.add_argument("--form", default=PRINTED, help="printed (default) or accounted")
    parser.add_argument("--epsilon", type=float, help="another epsilon than that of the site file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="given")
    parser.add_argument("--seed", type=int, help="of the noise and of all else; fresh if left out")
    parser.add_argument("--output", type=Path, default=Path("benchmark-output"))
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    options = parser.parse_args(arguments)
    try:
        found = run(
            options.method,
            site_of(options.dataset),
            form=options.form,
            epsilon=options.epsilon,
            settings={
                name: yaml.safe_load(value)
                for name, _, value in (given.partition("=") for given in options.given)
            },
            seed=options.seed,
            output=options.output,
        )
    except ClustMixError as error:
        print(f"benchmarks.rivals: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found) if options.json else f"{found['claim']}\n{found['folder']}")
    return 0


def site_of(dataset: str) -> SiteFile:
    """Return the site file of a dataset of the benchmarks, or the one at a path."""
    if dataset in site_names():
        return SiteFile.model_validate(site_document(dataset), by_name=False, by_alias=True)
    return load_site(Path(dataset))


if __name__ == "__main__":
    sys.exit(main())
