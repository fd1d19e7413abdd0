import json
import sys

import numpy as np
import pytest
import yaml
from halved_noise import __file__ as halved_noise

from audits.command import write
from audits.generated_release import audit_whole_release, source_of
from audits.planted import PlantedTable
from flows.cli import main
from flows.site.site_file import load_site
from privacy.errors import ClustMixError, ConfigurationError
from privacy.parameters import PrivacyUnit
from tasks.ingest.encoding import domain_of, encode_chunk
from tests.processes import ROOT

SITES = ROOT / "benchmarks" / "sites"
AUDIT_SITE = SITES / "audit.yaml"


def site(folder, name="audit", **changes):
    path = folder / "site.yaml"
    values = {**yaml.safe_load((SITES / f"{name}.yaml").read_text(encoding="utf-8")), **changes}
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def naive_bayes(folder, *, epsilon):
    privacy = {"epsilon": epsilon, "delta": 1e-6}
    return site(folder, method={"kind": "naive_bayes"}, privacy=privacy, rows=2000)


def test_bad_requests_are_refused_before_a_release(tmp_path):
    good = {"canaries": 1000, "confidence": 0.999, "command": ("unused",)}
    for changes, message in (
        ({"canaries": 999}, "AUDIT_CANARIES_INVALID: expected 1,000 to 1,000,000 canaries"),
        ({"confidence": 0.5}, "AUDIT_CONFIDENCE_INVALID"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            audit_whole_release(AUDIT_SITE, **{**good, **changes})
    with pytest.raises(ConfigurationError, match="AUDIT_UNSUPPORTED"):
        audit_whole_release(site(tmp_path, method={"kind": "dpgm"}), **good)
    stays = {
        "name": "stays",
        "source": {"kind": "csv", "path": "stays.csv"},
        "at": {"column": "day"},
    }
    day = {"name": "day", "kind": "integer", "lower": 0, "upper": 9, "bins": 2}
    events = [{**stays, "max_rows_per_patient": 3, "columns": [day]}]
    unit = {"column": "who", "max_rows_per_patient": 1}
    with pytest.raises(ConfigurationError, match=r"AUDIT_UNSUPPORTED.*tables of events"):
        audit_whole_release(
            site(tmp_path, method={"kind": "clustmix"}, events=events, privacy_unit=unit), **good
        )


def test_a_release_that_fails_is_named(tmp_path):
    failing = (sys.executable, "-c", "import sys; sys.exit('clustmix: NO: not today')")
    with pytest.raises(ClustMixError, match=r"AUDIT_RELEASE_FAILED: .* exit code 1: clustmix: NO:"):
        audit_whole_release(
            naive_bayes(tmp_path, epsilon=1.0), canaries=1000, confidence=0.999, command=failing
        )


@pytest.mark.parametrize("column", ["patient", None])
def test_a_planted_table_is_what_its_source_is_read_as(column):
    schema = load_site(AUDIT_SITE).table_schema
    rng = np.random.default_rng(0)
    table = PlantedTable.draw(
        domain_of(schema), named=column is not None, canaries=400, others=100, rng=rng
    )
    frame = source_of(table, schema, PrivacyUnit(column=column, max_rows=1), rng=rng)
    chunk = encode_chunk(frame, schema)
    read = sorted(map(tuple, np.column_stack([chunk.codes, chunk.label]).tolist()))
    meant = np.column_stack([table.codes, table.labels])[table.present]
    assert not chunk.violations
    assert read == sorted(map(tuple, meant.tolist()))
    assert 100 + 140 < len(frame) < 100 + 260  # coins are fair
    assert frame.columns[-1] == (column or schema.label.name)


@pytest.mark.integration
def test_a_whole_release_is_within_its_claim(tmp_path, capsys):
    path = naive_bayes(tmp_path, epsilon=4.0)
    folder = tmp_path / "audits"
    options = ["--whole-release", str(path), "--canaries", "1000", "--output", str(folder)]
    assert main(["audit", *options]) == 0
    shown = capsys.readouterr().out
    assert "naive_bayes whole release of generated-audit" in shown
    assert "Verdict:    within the claim" in shown
    (written,) = folder.glob("*.json")
    answer = json.loads(written.read_text(encoding="utf-8"))
    assert 1.5 < answer["measurement"]["epsilon"] < 4.0
    assert answer["bundle"]["epsilon"] > 0.0
    assert answer["noise_as_stated"]


@pytest.mark.integration
def test_half_of_the_noise_in_the_real_command_is_reported(tmp_path):
    found = audit_whole_release(
        naive_bayes(tmp_path, epsilon=4.0),
        canaries=1000,
        confidence=0.999,
        command=(sys.executable, halved_noise),
    )
    assert not found.within_claim
    assert found.measurement.epsilon > 4.0
    assert found.residual.ratio == pytest.approx(0.5, abs=0.02)
    assert not found.residual.as_stated


# Bounds that an honest whole release has to be expected to show with so many canaries; a single
# one lies within some 10 percent of it. Honest noise is outside its limits once in 1,000 runs.
EXPECTED = [
    *((name, 1.0, 0.6) for name in ("clustmix", "naive_bayes")),
    *((name, 4.0, 3.0) for name in ("clustmix", "naive_bayes")),
    ("images", 4.0, 2.0),
]
LONG = [pytest.mark.audit, pytest.mark.timeout(3600)]


def long_release(folder, name, epsilon, **options):
    file, canaries = ("audit-images", 3_000) if name == "images" else ("audit", 20_000)
    changes = {"privacy": {"epsilon": epsilon, "delta": 1e-6}}
    if name == "naive_bayes":
        changes["method"] = {"kind": name}
    path = site(folder, file, **changes)
    return audit_whole_release(path, canaries=canaries, confidence=0.999, **options)


@pytest.mark.parametrize(
    ("name", "epsilon", "expected"), [pytest.param(*one, marks=LONG) for one in EXPECTED]
)
def test_a_whole_release_shows_what_it_claims_and_half_of_its_noise(
    tmp_path, name, epsilon, expected
):
    found = long_release(tmp_path, name, epsilon)
    if name != "images":
        write(found, ROOT / "audit-output")
    assert found.within_claim, found.to_dict()
    assert found.expected_epsilon > expected
    assert found.measurement.epsilon > 0.7 * expected
    found = long_release(tmp_path, name, epsilon, command=(sys.executable, halved_noise))
    assert not found.within_claim, found.to_dict()
    assert found.measurement.epsilon > (epsilon / 2 if name == "images" else epsilon)
    assert not found.residual.as_stated
