import copy
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from flows.site.site_file import SiteFile, load_site
from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.schema.plain_yaml import MAX_BYTES
from tasks.ingest.encoding import decode, domain_of, encode_chunk

SITES = sorted((Path(__file__).parents[2] / "deployments" / "sites").glob("*.yaml"))

GOOD = {
    "dataset": "heart-2024",
    "title": "Heart failure",
    "source": {"kind": "csv", "path": "cohort.csv", "select": {"ward": "cardiology"}},
    "privacy_unit": {"column": "patient", "max_rows_per_patient": 3},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-6},
    "budget": {"lifetime_epsilon": 4.0},
    "method": {"kind": "clustmix"},
    "rows": 500,
    "schema": {
        "columns": [
            {"name": "age", "kind": "integer", "lower": 0, "upper": 110, "bins": 11},
            {"name": "sex", "kind": "categorical", "levels": ["f", "m"]},
        ],
        "label": {"name": "died", "levels": {"survived": [0], "dead": [1]}},
        "ignore": ["ward"],
    },
}


@pytest.fixture
def write_site(tmp_path):
    def write(content):
        path = tmp_path / "site.yaml"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def changed(where, value):
    data = copy.deepcopy(GOOD)
    *above, last = (int(key) if key.isdigit() else key for key in where.split("."))
    target = data
    for key in above:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


PLACE = re.compile(r"line \d+, column \d+: ")


def refusal(path):
    with pytest.raises(ConfigurationError) as caught:
        load_site(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_site_file_becomes_typed_values(write_site):
    site = load_site(write_site(GOOD))
    assert site.parameters == PrivacyParameters(epsilon=1.0, delta=1e-6)
    assert site.unit == PrivacyUnit(column="patient", max_rows=3)
    assert site.privacy.adjacency is Adjacency.ADD_REMOVE
    assert site.method.kind == "clustmix"
    assert site.columns_to_read == ("age", "sex", "died", "patient")
    assert not site.public_benchmark_data


POSSIBLE = "expected at least privacy.epsilon, so that one release is possible"
PART = {"scheme": "s", "parts": 2, "part": 0}


@pytest.mark.parametrize(
    ("where", "value", "line"),
    [
        ("privacy.epsilon", 0, "privacy.epsilon: expected a number greater than 0"),
        ("privacy.delta", 0.001, "privacy.delta: expected a number less than 0.001"),
        (
            "patients",
            10_000_000,
            "privacy.delta: expected below one over patients, or one whole row may be released",
        ),
        ("title", "a\nb", "title: expected one line of text with printable characters"),
        (
            "privacy_unit",
            {"column": None, "max_rows_per_patient": 2},
            "privacy_unit: expected max_rows_per_patient: 1 where no column names the patient",
        ),
        (
            "privacy_unit",
            {"column": None, "max_rows_per_patient": 1, "partition": PART},
            "privacy_unit: expected no partition and no key where no column names the patient",
        ),
        (
            "privacy_unit.partition",
            {**PART, "part": 2},
            "privacy_unit.partition: expected part below parts, as the first part is 0",
        ),
        ("budget.window", {"days": 30, "epsilon": 0.5}, f"budget.window.epsilon: {POSSIBLE}"),
        ("budget.lifetime_epsilon", 0.5, f"budget.lifetime_epsilon: {POSSIBLE}"),
        ("approval", "officers", "approval: expected 'none' or 'officer'; did you mean officer?"),
        (
            "privacy_unit.column",
            "age",
            "privacy_unit.column: expected a column outside schema.columns, labels and "
            "schema.ignore; the patient column is never released",
        ),
        (
            "schema.columns.1.levels",
            [True],
            "schema.columns[1] (sex).levels[0]: expected text or a number; write true, false "
            "and null in quotes",
        ),
        (
            "privacy_unit",
            {"column": 7, "rows": 1},
            "privacy_unit.max_rows_per_patient: expected this key, found none; and "
            "privacy_unit.column: expected a valid string; and privacy_unit.rows: unknown key",
        ),
    ],
)
def test_a_refusal_is_one_line_that_names_the_key(write_site, where, value, line):
    found = refusal(write_site(changed(where, value)))
    assert PLACE.sub("", found).replace(" 3 faults:", "") == f"SITE_INVALID: site.yaml: {line}"


FAULTY = """\
dataset: Heart
title: Heart failure
source: {kind: csv, path: cohort.csv, delimitr: ";", select: {wart: x}}
privacy_unit: {column: weight, max_rows_per_patient: -3}
privacy: {epsilon: 1.0, delta: 1.0e-6, adjacency: add_remov}
budgets: {lifetime_epsilon: 0.5}
method: {kind: clustmx}
patients: FILL_IN
schema:
  columns:
    - {name: age, kind: integer, lower: 110, upper: 9, bins: 11}
    - {name: sex, kind: categoricl, levels: [f, m], nulable: true, other: M, zzzzz: 1}
    - {name: weight, knd: real, lower: 0, upper: 9, bins: 3}
  label: {name: died, levels: {survived: [0], dead: [1]}, positive: deed}
  ignore: [ward]
"""
FAULTS = [  # line, word at the column, words of the fault
    (1, "Heart", "a name has"),
    (3, "delimitr", "did you mean delimiter?"),
    (4, "-3", "expected a number greater than or equal to 1"),
    (5, "add_remov}", "did you mean add_remove?"),
    (6, "budgets", "did you mean budget?"),
    (7, "clustmx", "did you mean clustmix?"),
    (8, "FILL_IN", "expected a value instead of FILL_IN"),
    (11, "{name", "(age): expected lower below upper"),
    (
        12,
        "{name",
        "expected other, groups, prefixes, numeric_ranges to name levels; did you mean m?",
    ),
    (12, "categoricl", "did you mean categorical?"),
    (12, "nulable", "did you mean nullable?"),
    (12, "zzzzz", "unknown key"),
    (13, "{name", "expected the key 'kind', found none; did you mean kind by knd?"),
    (14, "label", "did you mean dead?"),
]


def test_all_faults_of_a_file_are_said_each_with_its_place(write_site):
    with pytest.raises(ConfigurationError) as caught:
        load_site(write_site(FAULTY))
    assert caught.value.code == "SITE_INVALID"
    assert caught.value.message.isprintable()
    assert len(caught.value.faults) == len(FAULTS), caught.value.faults
    lines = FAULTY.splitlines()
    for fault, (line, word, words) in zip(caught.value.faults, FAULTS, strict=True):
        assert fault.startswith(f"line {line}, column {lines[line - 1].index(word) + 1}: ")
        assert words in fault


RULES = """\
  constraints:
    - {holds: wieght <= age}
    - {never: {sex: ff}}
    - {never: {died: deed}}
  ignore: [sex]
"""


def test_all_rules_are_checked_together(write_site):
    good = changed("schema.ignore", None) | {"source": {"kind": "csv", "path": "cohort.csv"}}
    with pytest.raises(ConfigurationError) as caught:
        load_site(write_site(yaml.safe_dump(good, sort_keys=False) + RULES))
    assert [PLACE.sub("", fault).partition(":")[0] for fault in caught.value.faults] == [
        "schema"
    ] * 4
    for fault, hint in zip(
        caught.value.faults,
        ("found sex again", "found wieght", "mean f?", "mean dead?"),
        strict=True,
    ):
        assert hint in fault


def test_parts_of_replaced_patients_are_refused(write_site):
    data = changed("privacy_unit.partition", PART)
    data["privacy"]["adjacency"] = "replace_one"
    assert "privacy_unit.partition: expected adjacency add_remove; " in refusal(write_site(data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "SITE_UNREADABLE: site.yaml: expected plain YAML, found an error at line 1"),
        ("a: 1\nb: 2\na: 3\n", "found an error at line 3, column 1: the key 'a' is given twice"),
        ("a: &x [*x]", "an alias inside its own anchor"),
        ("- a", "SITE_UNREADABLE: site.yaml: expected a mapping of keys; see clustmix init"),
        (b"\xff\xfe\x00", "SITE_UNREADABLE: site.yaml: expected text in UTF-8; save it in that"),
        (b"#" * (MAX_BYTES + 1), "SITE_TOO_LARGE: site.yaml: expected at most 1000000 bytes"),
    ],
)
def test_what_is_not_a_small_plain_mapping_is_refused(write_site, content, message):
    assert message in refusal(write_site(content))


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_shipped_sites_load_and_decode_to_valid_records(path):
    site = load_site(path)
    schema = site.table_schema
    assert isinstance(site, SiteFile)
    assert site.dataset == path.stem
    assert site.public_benchmark_data
    domain = domain_of(schema)
    rng = np.random.default_rng(5)
    codes = np.stack([rng.integers(0, n, 300) for n in domain.n_codes], axis=1).astype(np.uint16)
    label = rng.integers(0, domain.n_labels, 300).astype(np.uint16)
    again = encode_chunk(decode(codes, label, schema, rng=rng), schema)
    assert again.violations == ()
    assert np.array_equal(again.codes, codes)
    assert np.array_equal(again.label, label)
