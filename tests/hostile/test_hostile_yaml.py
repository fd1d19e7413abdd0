"""Whatever is in a site file: a valid site, or one printable line that refuses it."""

# ruff: noqa: PT017 -- whether a case is refused is up to the case

import os
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.site.site_file import SiteFile, load_site
from privacy.errors import ConfigurationError
from storage.schema.plain_yaml import MAX_LEVELS, MAX_LINE, MAX_NODES, read_mapping

GOOD = """\
dataset: made-up
title: Made-up wards
source: {kind: csv, path: cohort.csv}
privacy_unit: {column: patient, max_rows_per_patient: 1}
privacy: {epsilon: 1.0, delta: 1.0e-5}
budget: {lifetime_epsilon: 2.0}
method: {kind: naive_bayes}
rows: 10
schema:
  columns:
    - {name: ward, kind: categorical, levels: [icu, surgery]}
    - {name: age, kind: integer, lower: 0, upper: 9, bins: 2}
  label: {name: died, levels: {"no": [n], "yes": [j]}}
"""
DATA = yaml.safe_load(GOOD)
CODES = {"SITE_UNREADABLE", "SITE_TOO_LARGE", "SITE_INVALID", "SITE_INCOMPLETE", "INVALID_NAME"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("yaml") / "site.yaml"


@pytest.fixture(scope="module", autouse=True)
def nothing_runs():
    """End the run if a file makes the interpreter start, open or import what no reader needs."""
    armed = True

    def watch(event, arguments):
        if armed and event in {"os.system", "subprocess.Popen", "os.exec", "os.fork", "eval"}:
            raise AssertionError(event)

    sys.addaudithook(watch)
    yield
    armed = False


def loaded(path, content):
    """Load a file; check that a refusal is what a person can be shown."""
    path.write_bytes(
        content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    )
    try:
        site = load_site(path)
    except ConfigurationError as error:
        assert error.code in CODES
        assert error.message.isprintable()
        assert len(error.message) <= MAX_LINE
        assert error.message.startswith(("site.yaml: ", "a name has "))
        assert error.__cause__ is None
        assert error.__context__ is None
        return error
    assert isinstance(site, SiteFile)
    return site


@settings(max_examples=600)
@given(st.binary(max_size=200))
@example(b"\xff\xfea\0")
@example(b"\xef\xbb\xbf")
@example(b"a: \xed\xa0\x80")
def test_any_bytes(path, content):
    assert isinstance(loaded(path, content), ConfigurationError)


TOKENS = [
    "a", "b", "- ", ": ", ", ", "{", "}", "[", "]", "&a ", "*a", "!!", "!", "|", ">", "'", '"', "%",
    "\n", "  ", "? ", "---\n", "...\n", "#", "@", "`", "<<: ", "~", "0x1", "1e999", ".nan", "-.inf",
    "1_000", "190:20:30", "2001-13-45", "0o7", "!!int ", "!!bool ", "!!float ", "!!timestamp ",
    '"\\ud800"', '"\\UFFFFFFFF"', '"\\e[2J"', '"\\0"', '"\\u202e"', "!!binary ", "!!set ",
    "!!omap ", "%YAML 9.9\n", "%TAG ! tag:yaml.org,2002:python/\n",
    "!!python/object/apply:os.system ['id']",
    "\t", "\r", "\x85", "\u2028", "9" * 400, "0x" + "f" * 4000, "dataset", "FILL_IN",
]  # fmt: skip


@settings(max_examples=900)
@given(st.lists(st.sampled_from(TOKENS), max_size=25).map("".join))
@example("a: !!timestamp x")
@example('a: !!int ""')
@example("a: !!bool x")
@example('"\\ud800": 1')
def test_any_tokens(path, text):
    assert isinstance(loaded(path, text), ConfigurationError)


@settings(max_examples=400)
@given(
    position=st.integers(0, len(GOOD)),
    length=st.integers(0, 12),
    inserted=st.one_of(st.sampled_from(TOKENS), st.text(max_size=6)),
)
def test_good_file_with_a_wound(path, position, length, inserted):
    loaded(path, GOOD[:position] + inserted + GOOD[position + length :])


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.dates(),
    st.text(max_size=8),
    st.sampled_from(
        ["\x1b[2J", "a\u202eb", "\0", "FILL_IN", "=1+1", "k" * 3_000, "\ud7ff", "../x"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(scalars, inner, max_size=3)
    ),
    max_leaves=6,
)


def places(data, above=()):
    found = [above] if above else []
    if isinstance(data, dict):
        return found + [place for key in data for place in places(data[key], (*above, key))]
    if isinstance(data, list):
        return found + [p for i, inner in enumerate(data) for p in places(inner, (*above, i))]
    return found


def changed(place, value):
    data = yaml.safe_load(GOOD)
    reduce(getitem, place[:-1], data)[place[-1]] = value
    return data


@settings(max_examples=200)
@given(place=st.sampled_from(places(DATA)), value=values)
def test_any_value_in_any_place(path, place, value):
    loaded(path, yaml.safe_dump(changed(place, value), allow_unicode=True))


NAME, LEVEL = ("schema", "columns", 0, "name"), ("schema", "columns", 0, "levels", 0)


@settings(max_examples=100)
@given(
    place=st.sampled_from([("title",), NAME, LEVEL]),
    character=st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Co", "Cn"]),
)
def test_released_text_holds_no_invisible_character(path, place, character):
    error = loaded(path, yaml.safe_dump(changed(place, f"a{character}b")))
    assert "expected one line of text with printable characters" in error.message


@settings(max_examples=60)
@given(
    place=st.sampled_from([NAME, LEVEL, ("schema", "label", "name")]),
    beginning=st.sampled_from(["=", "@", "=1+", "+1+", "-2+3+", "@A1:"]),
    rest=st.sampled_from(["cmd|' /C calc'!A0", "SUM(A1)", 'HYPERLINK("http://e")', "(1)"]),
)
def test_released_text_is_no_formula(path, place, beginning, rest):
    error = loaded(path, yaml.safe_dump(changed(place, beginning + rest)))
    assert "expected text that no spreadsheet runs as a formula" in error.message


@settings(max_examples=30)
@given(
    width=st.integers(2, 12),
    depth=st.integers(2, 30),
    shape=st.sampled_from(["k{0}: &k{0} [{1}]", "? &k{0} [{1}]\n: 1", "k{0}: &k{0} {{<<: [{1}]}}"]),
)
@example(width=10, depth=12, shape="? &k{0} [{1}]\n: 1")
def test_aliases_that_grow_are_refused(path, width, depth, shape):
    """As lists of aliases, as keys that are lists, and as merged mappings."""
    lines = ["x: &x {y: 1}"]
    for level in range(depth):
        below = f"*k{level - 1}" if level else "*x" if "<<" in shape else "x"
        lines.append(shape.format(level, ", ".join([below] * width)))
    error = loaded(path, "\n".join(lines))
    assert isinstance(error, ConfigurationError)
    if width**depth > MAX_NODES and not shape.startswith("?"):
        assert error.code == "SITE_TOO_LARGE" or "levels" in error.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'1': a\n1: b", "the key '1' is given twice"),
        ("a: 1\n' a': 2", "the key ' a' is given twice"),
        ("~: 1\nnull: 2", "the key 'null' is given twice"),
        ("schema: {label: {levels: {1: [n], '1': [m]}}}", "the key '1' is given twice"),
        ("? [a]\n: 1", "a key that is a list or a mapping; write text"),
        ("a: !!set {x, y}", "the tag 'set'; write plain values, and text in quotes"),
        ("a: !!python/name:os.system x", "the tag 'python/name:os.system'; write plain"),
        ('a: "\\ud800"', "half of a character; write the whole one"),
        ('a: "\\UFFFFFFFF"', "not plain YAML"),
        (f"a:\n  {'[' * MAX_LEVELS}{']' * MAX_LEVELS}", f"more than {MAX_LEVELS} levels"),
    ],
)
def test_what_hides_is_refused_by_its_place(path, text, message):
    error = loaded(path, text)
    assert error.code == "SITE_UNREADABLE"
    assert message in error.message


@pytest.mark.parametrize(
    "written",
    "1:40 010 250.00 1_000 0x10 1.0e+5 2024-01-31 Yes No on True .5 1e5 -0 7 0.25 ++ +ve -9 -1.5e3 "
    "<=50K a=b 5-10".split(),
)
def test_a_level_is_as_it_is_written(path, written):
    site = loaded(path, GOOD.replace("[icu, ", f"[{written}, "))
    assert site.table_schema.columns[0].levels == (written, "surgery")


@given(st.text(alphabet="0123456789:._+-eExoYesNnulLTtrFfa~", min_size=1, max_size=6))
@example("null")
@example("true")
def test_a_scalar_without_quotes_is_text_or_a_number_that_is_written_so(path, written):
    path.write_text(f"level: {written}", encoding="utf-8")
    try:
        level = read_mapping(path)["level"]
    except ConfigurationError:
        return
    other = {"true": True, "false": False, "null": None, "Null": None, "NULL": None, "~": None}
    assert level is other[written] if written in other else str(level) == written


def test_merge_keys_are_plain_yaml(path):
    text = GOOD.replace("source: {", "source: {<<: {path: other.csv}, ")
    assert loaded(path, text).source.path == Path("cohort.csv")
    assert "the key '<<' is given twice" in loaded(path, "<<: {a: 1}\n<<: {b: 1}").message


def test_long_keys_leave_room_for_the_advice(path):
    error = loaded(path, GOOD + "".join(f"{letter * 900}: 1\n" for letter in "klm"))
    assert " [...] " in error.message
    assert error.message.endswith("unknown key")


def test_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigurationError, match="found a pipe or a device; write it to a file"):
        read_mapping(tmp_path / "pipe.yaml")
