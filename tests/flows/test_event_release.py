"""Releases of patients with tables of events, by site files, judged from their files."""

import json
import re

import frictionless
import mlcroissant
import numpy as np
import pandas as pd
import pytest
from desks import HOME

from clustmix import EventTable, Schema, verify
from flows.site.request import job_of
from flows.site.site_file import load_site
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from storage.sources.cohorts import CohortReader
from tasks.execution.cluster import local_cluster
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.executor import IN_PROCESS
from tasks.histories import event_frames
from tasks.ingest.shards import ShardFile
from tasks.steps.ingest_steps import ingest

# Of rdflib, whose reader of JSON-LD uses what it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")

DAY = {"kind": "date", "lower": "2023-01-01", "upper": "2025-06-30", "bins": "quarter"}
LABS = {
    "name": "labs",
    "at": {"column": "taken", "since": "admitted", "until": "gone"},
    "max_rows_per_patient": 6,
    "offsets": [0, 8, 31, 121],
    "kind": "test",
    "value": "value",
    "label": "unit",
    "values": {"note": None, "sodium": {"lower": 120, "upper": 160, "bins": 8}},
    "columns": [
        {"name": "taken", **DAY},
        {"name": "test", "kind": "categorical", "levels": ["glucose", "sodium", "note"]},
        {"name": "value", "kind": "real", "lower": 40, "upper": 200, "bins": 8, "decimals": 1},
        {"name": "unit", "kind": "categorical", "levels": ["a", "b"], "nullable": True},
    ],
    "ignore": ["device"],
}
STAYS = {
    "name": "stays",
    "key": "who",
    "at": {"column": "day"},
    "max_rows_per_patient": 3,
    "share": 0.2,
    "columns": [{"name": "day", "kind": "integer", "lower": 0, "upper": 99, "bins": 4}],
}
SCHEMA = {
    "columns": [
        {"name": "ward", "kind": "categorical", "levels": ["A", "B"]},
        {"name": "admitted", **DAY, "upper": "2024-12-31"},
        {"name": "gone", **DAY, "nullable": True},
    ],
    "constraints": [{"holds": "admitted <= gone"}],
    "label": {"name": "back", "levels": {"no": ["n"], "yes": ["y"]}, "nullable": True},
}


def made_tables(n=900):
    """Patients with a level that moves their values and the label, and events in any order."""
    rng = np.random.default_rng(4)
    level = rng.normal(size=n)
    people = pd.DataFrame({"patient": [f"P{i:04d}" for i in range(n)]})
    people["ward"] = rng.choice(["A", "B"], n)
    people["admitted"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D")
    people["back"] = np.where(level + rng.normal(0, 0.4, n) > 0.3, "y", "n")
    people.loc[rng.random(n) < 0.03, "back"] = ""
    who = np.repeat(np.arange(n), rng.integers(0, 9, n))
    labs = pd.DataFrame({"patient": people["patient"].to_numpy()[who], "device": "d"})
    later = pd.to_timedelta(rng.integers(0, 120, len(who)), "D")
    people["gone"] = (people["admitted"] + pd.Timedelta(60, "D")).where(np.arange(n) % 4 == 0)
    later = later.where((who % 4 > 0) | (later.days < 60), pd.Timedelta(60, "D"))
    labs["taken"] = people["admitted"].to_numpy()[who] + later
    labs["test"] = rng.choice(["glucose", "sodium", "note"], len(who))
    mean = np.where(labs["test"] == "glucose", 110 + 25 * level[who], 140)
    labs["value"] = (mean + rng.normal(0, 4, len(who))).round(1)
    labs.loc[labs["test"] == "note", "value"] = np.nan
    labs["unit"] = rng.choice(["a", "b", None], len(who))
    stays = pd.DataFrame({"who": rng.choice(people["patient"], n), "day": rng.integers(0, 100, n)})
    stays.loc[:5, "who"] = "of no patient here"
    return people, labs.sample(frac=1.0, random_state=2), stays


@pytest.fixture
def desk(desk):
    people, labs, stays = made_tables()
    people.to_csv(desk.folder / "people.csv", index=False)
    labs.to_parquet(desk.folder / "labs.parquet", index=False)
    stays.to_csv(desk.folder / "stays.csv", index=False, sep=";")
    places = [{"kind": "parquet", "path": str(desk.folder / "labs.parquet")}]
    places += [{"kind": "csv", "path": str(desk.folder / "stays.csv"), "delimiter": ";"}]
    tables = [
        {**table, "source": place} for table, place in zip((LABS, STAYS), places, strict=True)
    ]
    desk.site |= {
        "source": {"kind": "csv", "path": str(desk.folder / "people.csv")},
        "privacy_unit": {"column": "patient", "max_rows_per_patient": 1},
        "privacy": {"epsilon": 4.0, "delta": 1e-6},
        "budget": {"lifetime_epsilon": 9.0},
        "method": {"kind": "clustmix"},
        "schema": SCHEMA,
        "events": tables,
        "patients": 900,
        "rows": 700,
    }
    return desk


def of_release(desk, bundle, command, *options):
    path, site = desk.path, desk.site
    desk.path, desk.site = bundle.name, None
    code = desk.run(command, *options)
    desk.path, desk.site = path, site
    return code


def test_patients_and_events_are_one_release(desk, monkeypatch):
    # A table whose events are out of order, or of nobody, is withheld; what was paid for stays.
    decoded = event_frames._decoded
    for broken in (lambda frame: frame[::-1], lambda frame: frame.assign(patient=701)):
        with monkeypatch.context() as patch:
            patch.setattr(event_frames, "_decoded", lambda *about, b=broken: b(decoded(*about)))
            assert desk.release() == 4
            assert "events " in desk.line
            assert "labs" in desk.line
    assert desk.states == ["sealed"]
    assert desk.release() == 0, desk.line
    assert "nothing charged" in desk.output
    manifest = json.loads((desk.bundle / "manifest.json").read_text())
    drawn = [one["statistic"] for one in manifest["events"]]
    assert {"label_counts", "labs.transitions", "stays.transitions"} <= {*drawn}
    assert manifest["epsilon"] <= 4.0
    assert manifest["max_rows_per_patient"] == 1 + 6 + 3
    assert manifest["privacy_unit"].endswith("rows of labs and stays")
    assert sum("noisy counts: gap of" in one["check"] for one in manifest["gate"]) == 2
    bundle = verify(desk.bundle, keys=[HOME / "keys"])
    tables = bundle.tables()
    people, labs, stays = (tables[name] for name in ("patients", "labs", "stays"))
    assert people.columns.tolist() == ["patient", "ward", "admitted", "gone", "back"]
    assert people["patient"].tolist() == list(range(1, 701))
    assert labs.columns.tolist() == ["patient", "taken", "test", "value", "unit"]
    assert {*labs["patient"], *stays["who"]} <= {*people["patient"]}
    for table, key, moment, most in ((labs, "patient", "taken", 6), (stays, "who", "day", 3)):
        assert table.groupby(key)[moment].is_monotonic_increasing.all()
        assert table.groupby(key).size().max() <= most
        assert table[key].is_monotonic_increasing
    assert labs["value"].isna().equals(labs["test"] == "note")
    assert labs[labs["test"] == "sodium"]["value"].between(120, 160).all()
    joined = labs.merge(people, on="patient")
    assert (pd.to_datetime(joined["taken"]) >= pd.to_datetime(joined["admitted"])).all()
    assert not (pd.to_datetime(joined["taken"]) > pd.to_datetime(joined["gone"])).any()
    assert joined["gone"].notna().any()
    glucose = joined[joined["test"] == "glucose"].groupby("back")["value"].mean()
    assert glucose["yes"] > glucose["no"] + 12  # of real patients it is about 40
    assert pd.read_csv(desk.bundle / "labs.csv")["value"].equals(labs["value"])
    # Readers of schemas and catalogues find the tables and what joins them.
    schema = Schema.from_yaml(desk.bundle / "schema.json")
    assert isinstance(schema.events[1], EventTable)
    assert "path" not in (desk.bundle / "schema.json").read_text()
    package = frictionless.Package(str(desk.bundle / "datapackage.json"))
    assert package.validate().valid
    foreign = package.get_resource("stays-csv").schema.foreign_keys
    reference = {"resource": "synthetic-csv", "fields": ["patient"]}
    assert foreign == [{"fields": ["who"], "reference": reference}]
    croissant = mlcroissant.Dataset(str(desk.bundle / "croissant.json"))
    assert not croissant.metadata.issues.errors
    assert {"labs/patient", "labs/taken"} <= {*next(iter(croissant.records("labs")))}
    page = (desk.bundle / "report.html").read_text("utf-8")
    assert "What follows what" in page.partition("Events: labs</h2>")[2]
    assert "Events: stays</h2>" in page
    assert "`stays.parquet` has" in (desk.bundle / "data_card.md").read_text("utf-8")
    # Other rows are free; other draws of the noise are not offered.
    first = desk.bundle
    assert of_release(desk, first, "publish", "--rows", "40", "--where", "ward=B") == 0
    [other] = set(first.parent.glob("r-*")) - {first}
    assert {*pd.read_parquet(other / "synthetic.parquet")["ward"]} == {"B"}
    assert {*pd.read_parquet(other / "labs.parquet")["patient"]} <= {*range(1, 41)}
    assert of_release(desk, first, "resample") == 2
    assert desk.line.startswith("NOT_POOLABLE")
    assert len(desk.states) == 1
    # A table of events that has changed is another table.
    made_tables()[2].head(400).to_csv(desk.folder / "stays.csv", index=False, sep=";")
    assert desk.release() == 0, desk.line
    assert desk.states == ["published"] * 2


def test_the_plan_and_the_check_see_every_table(desk):
    assert desk.run("plan") == 0
    assert re.search(r"labs 40 % .* stays 20 % .*squared budget", " ".join(desk.output.split()))
    assert desk.run("check") == 0, desk.line
    labs = pd.read_parquet(desk.folder / "labs.parquet")
    labs.loc[7, "test"] = "potassium"
    labs.loc[8, ["test", "value"]] = ["note", 3.0]
    labs.to_parquet(desk.folder / "labs.parquet", index=False)
    assert desk.release() == 2
    assert "column test of labs: expected declared levels only" in desk.line
    assert "column value of labs: expected empty cells for kinds" in desk.line
    found = {line["column"]: line["rows"] for line in desk.diagnostics}
    assert found["test of labs"][0]["value"] == "potassium"
    assert len(found["value of labs"]) == 1
    assert desk.states[-1] == "void"


def some(cells, value):
    return cells.astype(object).where(np.arange(len(cells)) % 3 > 0, value)


EARLY = pd.Timestamp("2023-01-01")
FAULTS = {
    "an undeclared kind": ("test", lambda one: some(one["test"], "crp"), 2, "no declared level"),
    "dates as text": ("taken", lambda one: one["taken"].dt.strftime("%d.%m.%Y"), 2, "another form"),
    "no moment": ("taken", lambda one: one["taken"].where(one.index % 3 > 0), 2, "empty cells"),
    "no key": ("patient", lambda one: some(one["patient"], None), 2, "without a patient key"),
    "commas": ("value (sodium)", lambda one: some(one["value"], "1,5").astype(str), 2, "comma"),
    "a value of none": ("value (note)", lambda one: one["value"].fillna(7), 2, "without one"),
    "another unit": ("value (sodium)", lambda one: one["value"] / 99, 0, "another unit?"),
    "days too late": ("taken", lambda one: one["taken"] + pd.Timedelta(999, "D"), 2, "after until"),
    "before admission": ("taken", lambda one: some(one["taken"], EARLY), 0, "first of off"),
    "other patients": ("patient", lambda one: some(one["patient"], "?!"), 0, "of no patient"),
    "nobody": ("patient", lambda one: one["patient"] + "x", 2, "of no patient"),
    "one for many": ("patient", lambda one: some(one["patient"], "P0007"), 0, "a tenth or more"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_events_is_seen_by_table_and_column(desk, name):
    column, spoilt, code, said = FAULTS[name]
    labs, field = pd.read_parquet(desk.folder / "labs.parquet"), column.partition(" ")[0]
    labs = labs.reset_index(drop=True)
    labs[field] = spoilt(labs)
    labs.to_parquet(desk.folder / "labs.parquet", index=False)
    assert desk.run("check", "--show") == code
    faults, _, rest = desk.output.partition("nothing to mend")
    assert f"{column} of labs " in faults
    assert said in " ".join(faults.split())
    assert f"# {column} of labs: " in rest
    assert ("refused: " in rest) == (code > 0)
    if name == "days too late":  # by the sentence of a release
        [sentence] = re.findall("(?s)refused: (.*);", rest)
        assert desk.release() == 2
        assert " ".join(sentence.split()) in desk.line
        assert desk.run("check", "--show", "--json") == 2
        assert "no event after gone" in json.loads(desk.output)["refused"][0]
    assert {*desk.states} == {"void"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy_unit": {"column": "patient", "max_rows_per_patient": 2}}, "one row of each"),
        ({"method": {"kind": "naive_bayes"}}, "a table by clustmix"),
        ({"arrival": {}}, "what is of a single table; remove arrival"),
        ({"events": [{**LABS, "name": "tables"}]}, "another name than rows"),
        ({"events": [LABS, LABS]}, "different names"),
        ({"events": [{**LABS, "at": {"column": "taken", "since": "ward"}}]}, "at.since of labs"),
        ({"events": [{**LABS, "key": "unit"}]}, "each column once"),
        ({"events": [{**LABS, "ignore": ["patient"]}]}, "labs: key: expected a column outside"),
        ({"events": [{**LABS, "value": "amount"}]}, "a declared column, found amount"),
        ({"events": [{**LABS, "select": {"site": "A"}}]}, "select: expected declared columns"),
        ({"events": [{**LABS, "key": "patient", "place": "fhir"}]}, "a row for each event"),
        ({"events": [{**LABS, "query": "SELECT day FROM stay"}]}, "labs: source.query"),
    ],
)
def test_what_does_not_go_together_is_refused(desk, change, said):
    for table in change.get("events", ()):
        place = {"kind": "csv", "path": "labs.csv"}
        if table.pop("place", None):
            features = [{"column": "unit", "expression": "Patient.gender"}]
            place = {"kind": "fhir", "path": "export", "features": features}
        if "query" in table:
            place = {"kind": "sql", "url": "sqlite:///cdm.sqlite", "query": table["query"]}
        table |= {"source": place | {k: table[k] for k in ("select",) if k in table}}
        table.pop("query", table.pop("select", None))
    desk.site |= change
    assert desk.release() == 2
    assert said in desk.line
    assert desk.states == []


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("people", lambda rows: pd.concat([rows, rows.head(1)]), "one row of each patient"),
        ("stays", lambda rows: rows.assign(who="nobody"), "EVENTS_EMPTY: expected events"),
        ("stays", lambda rows: rows.head(0), "EMPTY_TABLE: expected rows in the source of stays"),
        ("stays", lambda rows: rows.rename(columns={"day": "d"}), "events, stays: expected the"),
    ],
)
def test_tables_that_do_not_belong_together_cost_nothing(desk, name, edit, said):
    tables = dict(zip(("people", "labs", "stays"), made_tables(), strict=True))
    separator = ";" if name == "stays" else ","
    edit(tables[name]).to_csv(desk.folder / f"{name}.csv", index=False, sep=separator)
    assert desk.release() == 2
    assert said in desk.line
    assert {*desk.states} <= {"void"}


def shards_of(desk, executor=IN_PROCESS):
    """Return the shards of patients and of each table, as rows in some order."""
    desk.path.write_text(json.dumps(desk.site))
    job = job_of(load_site(desk.path), "r-20260101-00000000")
    beside = {table.name: CohortReader(table.source) for table in job.events}
    with PrivateWorkspace.create(desk.folder / "d", "r-1") as workspace:
        log, reader = DiagnosticsFile(desk.folder / "log"), CohortReader(job.source, beside=beside)
        own = {"workspace": workspace, "diagnostics": log, "executor": executor}
        paths = ingest(job.columns_to_read, job.rules, reader, **own)
        assert not [*workspace.folder.rglob("piece-*")]
        shards = [ShardFile(path) for path in paths]
        found = {"": shards} | {n: [one.beside(n) for one in shards] for n in beside}
        return {
            name: sorted(
                (*codes, weight)
                for rows in (one.load() for one in own)
                for *codes, weight in np.column_stack([rows.codes, rows.weight]).tolist()
            )
            for name, own in found.items()
        }


def test_a_patient_changes_the_rows_of_that_patient_alone(desk):
    whole = shards_of(desk)
    people, labs, stays = made_tables()
    stays.sample(frac=1.0).to_csv(desk.folder / "stays.csv", index=False, sep=";")
    labs.sample(frac=1.0).to_parquet(desk.folder / "labs.parquet", index=False)
    assert shards_of(desk) == whole
    one = "P0017"
    people[people["patient"] != one].to_csv(desk.folder / "people.csv", index=False)
    without = shards_of(desk)
    for name, events in (("labs", labs["patient"]), ("stays", stays["who"])):
        lost = whole[name].copy()
        for row in without[name]:
            lost.remove(row)
        kept = min(int((events == one).sum()), {"labs": 6, "stays": 3}[name])
        assert len(lost) == kept
        assert sum(row[-1] for row in lost) == pytest.approx(float(kept > 0))
    assert len(whole[""]) - len(without[""]) == 1


def test_parts_of_a_partition_take_their_events_along(desk):
    whole, parts = shards_of(desk), []
    for part in range(2):
        split = {"scheme": "half", "parts": 2, "part": part}
        desk.site["privacy_unit"] |= {"partition": split}
        parts.append(shards_of(desk))
    for name, rows in whole.items():
        assert sorted(parts[0][name] + parts[1][name]) == rows


@pytest.mark.integration
def test_workers_make_the_same_shards(desk, tmp_path):
    expected = shards_of(desk)
    with local_cluster(2, tmp_path / "dask") as client:
        assert shards_of(desk, DaskExecutor(client, "r-1")) == expected
