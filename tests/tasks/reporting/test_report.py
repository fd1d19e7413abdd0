import re

import numpy as np
import pandas as pd
import pytest
from html_page import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.releases.manifest import GateRecord, MethodRecord
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.methods.registry import METHODS
from tasks.reporting.report import render_data_card, render_report, snippet
from tasks.reporting.tables import table_files

TAINTED = "Made with seeded noise, for tests only"


def test_the_page_says_everything(make_manifest, rows, schema):
    page = Page(render_report(make_manifest(), rows, schema, title="A title"))
    for text in (
        "A title",
        "r-20261121-0a1b2c3d",
        "epsilon = 1",
        "epsilon = 2.12",
        "What it protects against",
        "What it does not protect against",
        "Charged to ledger entry e-17: rho = ",
        "clustering round 1",
        "16,777,216",
        "11.50",
        "All 2 checks passed: 2 hold the files against the declared schema. None compares anything",
        "No causes.",
        "No rare groups.",
        "No exact counts.",
        "clustmix verify BUNDLE",
        "Signature",
    ):
        assert text in page.text
    # The best test, a plot and a bar of each column but the label, the map and its six colours.
    assert page.tags.count("svg") == 1 + 2 * len(schema.released_columns) - 1 + 1 + 6
    assert page.tags.count("h1") == 1
    assert "REQUEST-MARKER" not in page.text
    again = render_report(make_manifest(), rows.copy(), schema, title="A title")
    assert render_report(make_manifest(), rows, schema, title="A title") == again


def test_what_needs_no_look_is_folded_unless_it_failed(make_manifest, rows, schema):
    folded = "<details><summary>All checks"
    assert folded in render_report(make_manifest(), rows, schema)
    assert "<details><summary>Noise" in render_report(make_manifest(), rows, schema)
    failed = make_manifest(gate=(GateRecord(check="columns", passed=False),))
    assert folded.replace("details", "details open", 1) in render_report(failed, rows, schema)


def test_columns_are_ranked_and_a_wide_map_is_cut(make_manifest, rows, schema):
    same = rows.assign(admission=np.where(rows["readmitted"] == "yes", "urgent", "elective"))
    text = render_report(make_manifest(), same, schema)
    ranked = re.findall('<th scope="row">([^<]*)</th>', text)
    assert ranked[0] == "admission"
    assert sorted(ranked) == sorted(schema.column_names)
    assert "<title>admission and readmitted: 1.00</title>" in text
    assert "not for a record. Along an axis" in text  # at most three records of a patient
    wide = TableSchema(items=tuple(f"i{k}" for k in range(60)), label=schema.label)
    sets = pd.DataFrame(np.random.default_rng(1).integers(0, 2, (400, 60)), columns=wide.items)
    text = render_report(make_manifest(), sets.assign(readmitted=rows["readmitted"]), wide)
    assert "the labels, and of 60 columns the 39 with the most information about them" in text
    assert text.count("not in the map") == 21


@pytest.mark.parametrize("kind", ["columns", "image"])
def test_the_snippet_loads_the_rows(kind, rows, schema, tmp_path, monkeypatch):
    if kind == "image":
        schema = TableSchema(image={"height": 3, "width": 2}, label=schema.label)
        pixels = pd.DataFrame(np.full((len(rows), 6), 7), columns=schema.column_names)
        rows = pixels.assign(readmitted=rows["readmitted"])
    for name, content in table_files(rows, schema).items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec("\n".join(snippet(schema)), found)  # noqa: S102 -- of this test
    assert (found["y"] == rows["readmitted"]).all()
    assert found["X"].shape == ((400, 3, 2, 1) if kind == "image" else (400, 4))


def test_the_dictionary_has_the_meanings_of_codes(make_manifest):
    label = {"name": "stay", "buckets": {"edges": [3, 7], "levels": ["short", "week", "long"]}}
    diagnosis = {"kind": "categorical", "name": "diagnosis", "levels": ["heart", "V", "other"]}
    diagnosis |= {"groups": {"heart": ["785"]}, "prefixes": {"V": ["V"]}, "other": "other"}
    diagnosis |= {"numeric_ranges": {"heart": [[390, 460]]}}
    coded = TableSchema.model_validate({"columns": [diagnosis], "label": label})
    few = pd.DataFrame({"diagnosis": ["V"] * 3, "stay": ["week"] * 3})
    text = Page(render_report(make_manifest(), few, coded)).text
    assert "heart (785, 390 to below 460) | V (V...) | other; other also stands for" in text
    assert "short (below 3), week (3 to below 7), long (from 7 on)" in text


def test_the_verdict_says_what_was_compared_with_what(make_manifest, rows, schema):
    compared = {"passed": True, "distance": 0.1, "bound": 0.2}
    gate = (
        GateRecord(check="files", passed=True),
        GateRecord(check="marginal: age", **compared),
        GateRecord(check="marginal, noisy counts: age", **compared | {"passed": False}),
    )
    said = (
        "1 of 3 checks failed: 1 hold the files against the declared schema, 1 compare the rows "
        "with a fresh sample of the measurement, 1 with its sealed counts, which have noise."
    )
    manifest = make_manifest(gate=gate)
    assert said in Page(render_report(manifest, rows, schema)).text
    assert said in render_data_card(manifest, schema)


def test_the_page_makes_no_request_and_runs_no_script(make_manifest, rows, schema):
    text = render_report(make_manifest(), rows, schema)
    page = Page(text)
    loading = {"script", "link", "img", "iframe", "object", "embed", "form", "base", "audio"}
    assert loading.isdisjoint(page.tags)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert not any(name.startswith("on") or name == "src" for name, _ in page.attributes)
    assert "default-src 'none'" in text
    anchors = {value for name, value in page.attributes if name == "href"}
    targets = {f"#{value}" for name, value in page.attributes if name == "id"}
    assert anchors <= targets


def test_a_table_without_a_guarantee_is_marked_at_the_top(make_manifest, rows, schema):
    text = render_report(make_manifest(tainted=True), rows, schema)
    page = Page(text)
    assert 'class="alarm"' in text
    assert page.text.index(TAINTED) < page.text.index("The guarantee")
    assert "Not for release" in page.text
    assert "What it protects against" not in page.text
    assert "by an exact sampler" not in page.text
    assert "epsilon ε, claimed" in page.text
    card = render_data_card(make_manifest(tainted=True), schema)
    assert card.index(TAINTED) < card.index("## 1.")
    assert "> **NOT FOR RELEASE: " in card
    assert "It protects against" not in card


def test_the_card_follows_the_pyramid(make_manifest, schema):
    card = render_data_card(make_manifest(), schema)
    titles = re.findall(r"^## (.*)$", card, flags=re.MULTILINE)
    assert titles == [
        "1. Guarantee", "2. Algorithms", "3. Utility and bias",
        "4. Security, side channels and trust", "5. Data collection", "6. Release gate",
        "7. Data dictionary", "8. Verification",
    ]  # fmt: skip
    assert "clustmix verify BUNDLE" in card
    assert "REQUEST-MARKER" not in card
    assert "| creatinine | real, 2 decimals |" in card
    for table in re.findall(r"(?:^\|.*\n)+", card, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1


HOSTILE = [
    "<script>alert(1)</script>", "</style><script>x</script>", '"><svg onload=alert(1)>',
    "' onmouseover='x", "</title></text></svg></details>", "<!--", "]]>", "&lt;b&gt;",
    "a|b\\|c",
    "`code` *bold* [x](http://e)", "\u202egnp.exe", "Ärzte \N{SNOWMAN} 患者", "a\nb\r\n# title",
]  # fmt: skip
KINDS = {entry.kind for entry in METHODS}
titles = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=20)).filter(
    lambda text: text not in KINDS  # of a method the page says more than of a title
)
# A schema refuses names that do not print, and those that a spreadsheet would run.
names = titles.filter(
    lambda text: text.isprintable() and bool(text.strip()) and text.strip()[0] not in "=@+-"
)


def page_and_card(make_manifest, numeric, categorical, label, levels, missing, title):
    first, second = levels
    schema = TableSchema(
        columns=(
            NumericColumn(
                kind="integer", name=numeric, lower=0, upper=3, bins=2, missing=(missing,)
            ),
            CategoricalColumn(kind="categorical", name=categorical, levels=levels, other=second),
        ),
        label=Label(name=label, levels={first: (), second: ()}),
    )
    frame = pd.DataFrame(
        {numeric: [0, 1], categorical: list(levels), label: list(levels)}, dtype=object
    )
    manifest = make_manifest(
        gate=(GateRecord(check=f"bounds: {numeric}", passed=False),),
        method=MethodRecord(name=title, settings={categorical: label}),
        privacy_unit=title,
        code_version=title,
    )
    page = Page(render_report(manifest, frame, schema, title=title))
    return page, render_data_card(manifest, schema, title=title)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(names, min_size=5, max_size=5, unique_by=str.strip), titles)
def test_hostile_names_and_levels_never_break_out(make_manifest, texts, title):
    *names, first, second = texts
    levels = (first.strip() or "first", second.strip() or "second")
    hostile, card = page_and_card(make_manifest, *names, levels, "<img src=x>", title)
    calm, quiet = page_and_card(make_manifest, "n", "c", "l", ("x", "y"), "m", "t")
    assert hostile.tags == calm.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in calm.attributes]
    assert len(card.splitlines()) == len(quiet.splitlines())
    assert [line[:2] for line in card.splitlines() if line.startswith("#")] == [
        line[:2] for line in quiet.splitlines() if line.startswith("#")
    ]
    assert "<" not in card
