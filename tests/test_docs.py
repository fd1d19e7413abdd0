"""The documents say what the code does: generated pages are fresh, tables are computed anew."""

import dataclasses
import math
import re

import numpy as np
import pytest
import yaml
from measuring import domain_with
from pydantic import TypeAdapter
from scipy.stats import chi2, norm

from flows.site.request import PublishRequest, ReleaseRequest
from flows.site.site_file import SiteFile, _Budget, _Window, load_site
from privacy import errors
from privacy.calibration import gdp_mu
from privacy.gaussian import GaussianAccountant
from privacy.ledger import TRANSITIONS, EntryState
from privacy.parameters import Adjacency
from storage.settings import Settings
from tasks.execution.runtime import ORDINARY_ENDS
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.tables.table_clustmix import TableClustMix
from tasks.methods.method_config import MethodConfig
from tasks.methods.registry import build
from tests.documents import module_at, table_after
from tests.processes import ROOT

DOCS = ROOT / "docs"
METHODS = (DOCS / "methods.md").read_text(encoding="utf-8")
OPERATE = (DOCS / "operate.md").read_text(encoding="utf-8")
LEDGER = (DOCS / "ledger.md").read_text(encoding="utf-8")


def script(name):
    return module_at(DOCS / f"{name}.py")


def test_page_of_the_site_file_is_fresh_and_explains_every_key():
    page = (DOCS / "site-file.md").read_text(encoding="utf-8")
    site_file = script("site_file")
    assert site_file.page() == page, "run: python docs/site_file.py"
    assert not re.findall(r"^- `\w+`: .*\. $", page, flags=re.M), "a key without a meaning"
    schema = SiteFile.model_json_schema(by_alias=True)
    # Models of one name, such as the shares of two methods, stand there with their modules.
    models = [name for name, part in schema["$defs"].items() if "properties" in part]
    documented = sorted(model.__name__ for model in site_file.SECTIONS)
    assert sorted(["SiteFile", *(name.rsplit("__", 1)[-1] for name in models)]) == documented
    assert set(site_file.NOTES) <= set(site_file.SECTIONS.values())


def test_example_of_the_site_file_is_accepted(tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(script("site_file").EXAMPLE, encoding="utf-8")
    assert load_site(path).privacy_unit.max_rows_per_patient == 3


@pytest.mark.parametrize("name", ["OMOP_EXAMPLE", "FHIR_EXAMPLE"])
def test_example_of_a_hospitals_store_is_accepted(name, tmp_path):
    example = getattr(script("site_file"), name).partition("```yaml\n")[2].partition("```")[0]
    whole = yaml.safe_load(script("site_file").EXAMPLE) | yaml.safe_load(example)
    (tmp_path / "example.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert load_site(tmp_path / "example.yaml").source.features[-1].column in ("died", "diabetes")


def test_results_are_those_of_the_stored_rows():
    figures = script("figures")
    page = figures.PAGE.read_text(encoding="utf-8")
    assert figures.with_tables(page) == page, "run: python docs/figures.py"
    for name, draw in figures.PICTURES.items():
        assert draw() == (DOCS / name).read_text(encoding="utf-8"), "run: python docs/figures.py"
    assert all(page.count(f"<!-- {name} -->") == 1 for name in figures.TABLES)
    report = (DOCS / "report.png").stat()
    assert report.st_size <= 200_000


def test_a_later_look_at_a_split_replaces_an_earlier_one(monkeypatch):
    figures = script("figures")
    row = {"dataset": "adult", "method": "clustmix", "analysis": "proven", "epsilon": 1.0}
    row |= {"seed": 0, "settings": {}}
    stored = [row | {"auc": 0.8}, row | {"auc": 0.9, "settings": {"look": 2}}]
    stored += [row | {"auc": 0.7, "seed": 1}, row | {"auc": 0.1, "analysis": "published"}]
    stored += [row | {"auc": 0.5, "method": "naive_bayes"}]
    monkeypatch.setattr(figures, "rows", lambda name: stored * (name == "public_tables"))
    found = sorted(run["auc"] for run in figures.runs("adult", "clustmix", 1.0))
    assert found == [0.7, 0.9]
    assert figures.figure(found) == "0.800±0.141"
    assert figures.figure([None, 0.5]) == "0.500"
    # Naive Bayes changed at the third look.
    assert figures.runs("adult", "naive_bayes", 1.0) == []


def test_picture_is_what_its_script_draws():
    drawn = (DOCS / "flow.svg").read_text(encoding="utf-8")
    assert script("flow_picture").picture() == drawn, "run: python docs/flow_picture.py"


def constrained_halves(values, size):
    """Best two groups of at least ``size`` values by squared error; in one dimension a cut."""
    values = np.sort(values)

    def cost(cut):
        return sum(((part - part.mean()) ** 2).sum() for part in (values[:cut], values[cut:]))

    cut = min(range(size, len(values) - size + 1), key=cost)
    return values[:cut], values[cut:]


def counterexample(size, moved):
    return np.array([0.0] * (size - 1) + [moved] + [0.5] * (size - 1) + [0.9] + [1.0] * (size - 1))


def sum_of_noisy_means(halves, mu):
    """Mean and standard deviation of the sum of the published outputs."""
    stddev = math.sqrt(sum((1 / (len(half) * mu)) ** 2 for half in halves))
    return sum(half.mean() for half in halves), stddev


@pytest.mark.parametrize("row", table_after(METHODS, "### The counterexample"))
def test_counterexample_table(row):
    size, n, first, second, delta = int(row[0]), int(row[1]), *map(float, row[2:5])
    mu = gdp_mu(epsilon=1.0, delta=1e-5)
    tables = [counterexample(size, moved) for moved in (0.2, 0.0)]
    assert [len(table) for table in tables] == [n, n]
    (mean, stddev), (mean_moved, stddev_moved) = (
        sum_of_noisy_means(constrained_halves(table, size), mu) for table in tables
    )
    thresholds = np.linspace(min(mean, mean_moved) - 2, max(mean, mean_moved) + 8, 20_001)
    above = norm.sf(thresholds, mean, stddev)
    above_moved = norm.sf(thresholds, mean_moved, stddev_moved)
    best = int(np.argmax(above - math.e * above_moved))
    assert above[best] == pytest.approx(first, rel=0.02)
    assert above_moved[best] == pytest.approx(second, rel=0.15, abs=1e-12)
    assert above[best] - math.e * above_moved[best] == pytest.approx(delta, rel=0.02)
    assert delta > 1e-5


@pytest.mark.parametrize("row", table_after(METHODS, "### The size of a cluster"))
def test_table_of_the_leak_by_the_noise_of_a_cluster(row):
    dimension, size, delta = int(row[0]), int(row[1]), float(row[2])
    narrow, wide = 1 / (size + 1), 1 / size  # the same mean; only their ratio counts
    # The likelihood ratio is above e where the squared norm is above (or below) one threshold.
    slope = 1 / narrow**2 - 1 / wide**2
    base = 2 * dimension * math.log(wide / narrow)
    outside = (2 + base) / slope
    inside = (base - 2) / slope
    found = max(
        chi2.sf(outside / wide**2, dimension) - math.e * chi2.sf(outside / narrow**2, dimension),
        chi2.cdf(inside / narrow**2, dimension) - math.e * chi2.cdf(inside / wide**2, dimension),
    )
    assert found == pytest.approx(delta, rel=0.02)


@pytest.fixture(scope="module")
def domain():
    return domain_with(4, 3, numeric=[0], missing=[1])


@pytest.fixture(scope="module")
def plan(domain):
    return TableClustMix(domain).plan(mu=gdp_mu(epsilon=1.0, delta=1e-6))


@pytest.mark.parametrize(
    "heading", ["### What is released", "### What the form for images releases"]
)
def test_table_of_statistics_is_that_of_the_plan(heading, domain, plan):
    if "images" in heading:
        # As few patients as make the norm of a residual that of the first column of the rule.
        images = dataclasses.replace(domain, image=(1, 2, 1), patients=100)
        plan = ImageClustMix(images).plan(mu=plan.mu)
    documented = [
        (re.sub(r"\W+$", "", row[0].strip("`")), row[3]) for row in table_after(METHODS, heading)
    ]
    root_two = math.sqrt(2.0)
    bounds = {"1": 1.0, "sqrt(2)": root_two, ".85^2 / sqrt(2)": 0.85**2 / root_two, "C": 0.5}
    planned = [(re.sub(r"_\d+$", "_t", one.name), one) for one in plan.statistics]
    assert [name for name, _ in documented] == list(dict.fromkeys(name for name, _ in planned))
    for name, statistic in planned:
        bound = bounds[dict(documented)[name]]
        assert statistic.l2_sensitivity / statistic.scale == pytest.approx(bound, rel=1e-9)


ROUNDS = re.compile(r"_\d+$")
OTHERS = table_after(METHODS, "### What the other methods release")


@pytest.mark.parametrize("kind", sorted({row[1] for row in OTHERS}))
def test_statistics_of_the_other_methods_are_those_of_their_plans(kind, domain):
    documented = {row[0].strip("`"): row[3] for row in OTHERS if row[1] == kind}
    config = TypeAdapter(MethodConfig).validate_python({"kind": kind})
    planned = {ROUNDS.sub("_t", s.name): s for s in build(config, domain).plan(mu=0.3).statistics}
    assert sorted(planned) == sorted(documented)
    for name, statistic in planned.items():
        is_one = statistic.l2_sensitivity / statistic.scale == pytest.approx(1.0, rel=1e-9)
        assert documented[name] == ("1" if is_one else "R")


def test_budget_of_the_theorem_is_kept(plan):
    total = sum(one.l2_sensitivity**2 / (one.noise_stddev**2 - 16) for one in plan.statistics)
    assert total <= plan.mu**2
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    assert accountant.epsilon(delta=1e-6) <= 1.0


def test_every_state_of_the_ledger_is_explained_with_what_may_follow():
    documented = {
        row[0].strip("`"): set(re.findall(r"`(\w+)`", row[3]))
        for row in table_after(LEDGER, "## The states of an entry")
    }
    assert documented == {
        state.name: {following.name for following in TRANSITIONS[state]} for state in EntryState
    }


def listed(heading):
    """Return the first words of the list items of a section."""
    section = re.split(r"^## ", OPERATE.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^- `?([\w. -]+?)`?(?: \(.*?\))?:", section, flags=re.M)


def test_every_variable_and_exit_code_is_explained():
    variables = re.findall(r"^- `CLUSTMIX_(\w+)`:", OPERATE, flags=re.M)
    assert set(variables) == {name.upper() for name in Settings.model_fields}
    codes = {error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")}
    assert set(map(int, listed("## Commands and exit codes"))) == {0, *codes}


def test_every_cap_of_the_site_file_is_explained():
    documented = [row[0] for row in table_after(LEDGER, "## Caps")]
    caps = [name for name in _Budget.model_fields if name != "cohort"]
    assert [re.match(r"`(\w+)", cell)[1] for cell in documented] == caps
    assert documented[-1] == f"`window: {{{', '.join(_Window.model_fields)}}}`"


def source_of(*places):
    files = [file for place in places for file in (ROOT / place).rglob("*.py")]
    return "".join(file.read_text(encoding="utf-8") for file in files)


def test_every_code_of_an_error_is_one_of_the_program():
    states = {state.name for state in EntryState}
    variables = {f"CLUSTMIX_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", OPERATE + LEDGER)) - states - variables
    source = source_of("clustmix", "flows", "privacy", "storage", "tasks")
    # Those of Prefect and of clients of S3 are variables of theirs.
    unknown = {name for name in named if f'"{name}"' not in source}
    assert not [name for name in unknown if not name.startswith(("PREFECT_", "AWS_"))]
    assert {"LEDGER_ROLLED_BACK", "KEY_LOST", "FILE_CHANGED"} <= named


def test_clean_up_is_explained_for_every_state_of_an_open_run():
    section = LEDGER.split("## Clean-up")[1].split("\n## ")[0]
    items = re.findall(r"^- `(\w+)`.* (stays|becomes `\w+`):", section, flags=re.M)
    documented = {(state, re.sub(r"becomes|\W", "", end)) for state, end in items}
    assert documented == {
        ("RESERVED", "VOID"),
        ("EXECUTING", "SEALED"),
        ("EXECUTING", "BURNED"),
        ("SEALED", "stays"),
        ("APPROVED", "PUBLISHED"),
        ("APPROVED", "stays"),
    }
    open_states = {state.name for state in EntryState if TRANSITIONS[state]} - {"PUBLISHED"}
    assert {state for state, _ in documented} == open_states
    for state, following in documented - {("SEALED", "stays"), ("APPROVED", "stays")}:
        assert EntryState[following] in TRANSITIONS[EntryState[state]]


def test_every_field_of_a_form_is_explained():
    titles = [field.title for field in ReleaseRequest.model_fields.values()]
    assert listed("## Release by hand")[: len(titles)] == titles
    assert f"`{PublishRequest.model_fields['decision'].title}`" in OPERATE


def test_every_refusal_of_an_arrival_is_explained():
    source = source_of("flows/watching", "storage")
    refusals = set(re.findall(r'InputError\(\s*"(ARRIVAL_[A-Z_]+)"', source))
    assert set(listed("### Refused arrivals")) == refusals
    for code in re.findall(r'ConfigurationError\(\s*"((?:LANDING|ARRIVALS)_[A-Z_]+)"', source):
        assert f"`{code}`" in OPERATE, code


def test_every_end_and_artifact_of_a_run_is_explained():
    ends = {name for name in listed("## What an operator sees") if "-" not in name}
    assert {"Completed", "Waiting", "Failed", "Crashed", *ORDINARY_ENDS.values()} == ends
    assert set(re.findall(r'Ending\(name="(\w+)"', source_of("flows"))) <= ends
    text = OPERATE.split("## What an operator sees")[1].split("### Data of the orchestrator")[0]
    documented = set(re.findall(r"^- `([a-z]+)-DATASET`", text, flags=re.M))
    shown = set(re.findall(r'key=f"([a-z]+)-\{', source_of("flows")))
    assert documented == {*shown, "guarantee", "gate"}


def test_every_notification_is_explained():
    path = ROOT / "deployments" / "automations.yaml"
    automations = yaml.safe_load(path.read_text(encoding="utf-8"))["automations"]
    told = {
        event: action["payload"]
        for automation in automations
        for action in automation["actions"]
        if action["type"] == "call-webhook"
        for event in automation["trigger"].get("after", automation["trigger"]["expect"])
    }
    section = OPERATE.split("## Notifications")[1].split("## Metrics")[0]
    rows = dict(re.findall(r"^- `([\w.-]+)`: .* \(([^)]+)\)$", section, flags=re.M))
    assert set(rows) == set(told)
    for event, payload in told.items():
        fields = set(re.findall(r'"(\w+)": ?', payload)) - {"event", "text"}
        assert set(re.findall(r"`(\w+)`", rows[event])) == fields, event
