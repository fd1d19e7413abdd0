"""Bundles of whole releases of public tables, judged from outside and by their files alone."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import pytest

from benchmarks import tables
from benchmarks.bundle_rows import label_levels, label_of, text_of
from privacy.errors import InputError
from storage.public_data.datasets import find
from tests.processes import ROOT, python

PATIENTS, IMAGES, ROWS = 4_000, 2_000, 4_000
# Seven releases come before the first test.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
RELEASE_ALL = """
import sys
from flows.cli import main
sys.exit(max(main(["release", site, "--json"]) for site in sys.argv[1:]))
"""


def many_numbered_levels(document):
    """Take the code of the pattern as the label: ten levels, of which 10 sorts before 2."""
    schema = document["schema"]
    schema["ignore"].remove("CLASS")
    schema["ignore"].append(schema["label"]["name"])
    schema["label"] = {"name": "CLASS", "levels": {str(number): [] for number in range(1, 11)}}


# A name, a site file, and the least AUC of the bundle. A model that ranks as well as the real rows
# let it, but the other way round, has one minus that. Items say little of their label: there the
# shares decide.
CASES = {
    "against-the-alphabet": ("diabetes130-readmission", 0.55), "two-levels": ("adult", 0.85),
    "three-levels": ("cardiotocography", 0.75), "ten-levels": ("cardiotocography", 0.75),
    "buckets": ("diabetes130-length-of-stay", 0.6), "items": ("diabetes130-items", 0.47),
    "images": ("mnist-binarised", 0.85),
}  # fmt: skip
CHANGES = {"ten-levels": many_numbered_levels}


def part_of(document, folder):
    """Write some images, or the rows of some patients, as a table; return its file."""
    if "image" in document["schema"]:
        frame = pd.read_parquet(find("mnist"))[:IMAGES]
    else:
        site = tables.write_site(document, folder / "whole.yaml")
        frame = tables.read_table(site)
        patients = frame.index if site.unit.column is None else frame[site.unit.column]
        kept = np.random.default_rng(1).permutation(patients.unique())[:PATIENTS]
        frame = frame[patients.isin(kept)]
    frame.to_parquet(folder / "part.parquet", index=False)
    document["source"] = {"kind": "parquet", "path": str(folder / "part.parquet")}
    return folder / "part.parquet"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Release all cases in one process, score their files in another."""
    home = tmp_path_factory.mktemp("bundles")
    documents, real = {}, {}
    for name, (site, _) in CASES.items():
        (home / name).mkdir()
        document = documents[name] = tables.site_document(site)
        CHANGES.get(name, id)(document)
        try:
            real[name] = part_of(document, home / name)
        except InputError as absent:
            pytest.skip(f"a public table is not on this machine: {absent.code}")
        document |= {
            "dataset": name, "rows": ROWS, "method": {"kind": "naive_bayes"},
            "privacy": {"epsilon": 10.0, "delta": 1e-6}, "budget": {"lifetime_epsilon": 10.0},
        }  # fmt: skip
        tables.write_site(document, home / name / "site.yaml")
    run(["-c", RELEASE_ALL, *(home / name / "site.yaml" for name in documents)], home)
    found = {name: next((home / "releases" / name).glob("r-*")) for name in documents}
    pairs = [str(path) for name, bundle in found.items() for path in (bundle, real[name])]
    scores = json.loads(run(["-m", "benchmarks.score", "--trees", "20", *pairs], home))
    return {
        name: (score, expected_shares(documents[name], real[name]))
        for name, score in zip(documents, scores, strict=True)
    }


def run(command, home):
    """Run Python with a home of its own and no cluster."""
    ours = {
        "CLUSTMIX_HOME": str(home / "home"),
        "CLUSTMIX_RELEASES": str(home / "releases"),
        "CLUSTMIX_DASK_WORKERS": "0",
        "OMP_THREAD_LIMIT": "1",
    }
    answer = python(*command, cwd=ROOT, env={**os.environ, **ours})
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


def expected_shares(document, path):
    """Share of each level where every patient counts as one, as a release counts."""
    label, unit = document["schema"]["label"], document["privacy_unit"]
    frame = pd.read_parquet(path)
    level = frame[label["name"]].map(text_of).map(lambda text: label_of(text, label))
    patient = frame[unit["column"]] if unit["column"] else pd.Series(frame.index)
    table = pd.DataFrame({"level": level.to_numpy(), "patient": patient.to_numpy()})
    table = table[table.level.isin(label_levels(label))]
    table = table.groupby("patient").head(unit["max_rows_per_patient"])
    weight = 1 / table.groupby("patient")["level"].transform("size")
    shares = weight.groupby(table["level"]).sum() / weight.sum()
    return {name: float(shares.get(name, 0.0)) for name in label_levels(label)}


@pytest.mark.parametrize("name", CASES)
def test_bundle_has_the_label_shares_of_the_table_and_ranks_real_rows(name, bundles):
    score, expected = bundles[name]
    published = {level: share for level, (_, share) in score["label_shares"].items()}
    # Five deviations of the drawn rows; the noise of the shares is far smaller.
    assert published == pytest.approx(expected, abs=2.5 / ROWS**0.5)
    assert list(published) == list(expected)
    assert score["auc"] > CASES[name][1], score["auc_by_level"]


def test_scorer_imports_nothing_of_the_pipeline():
    code = (
        "import sys, benchmarks.score; "
        "sys.exit(str([name for name in sys.modules "
        "if name.split('.')[0] in ('privacy', 'storage', 'tasks', 'flows')] or ''))"
    )
    answer = python("-c", code, cwd=ROOT)
    assert answer.stderr.strip() == ""
