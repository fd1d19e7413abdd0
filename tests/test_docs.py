import dataclasses
import math
import re
import tomllib

import pytest
import yaml
from measuring import domain_with
from pydantic import TypeAdapter

from benchmarks import report
from benchmarks.stored_rows import Stored
from flows.publish import PublishRequest
from flows.site.request import ReleaseRequest
from flows.site.site_file import SiteFile, _Budget, _Window, load_site
from privacy import errors
from privacy.calibration import gdp_mu
from privacy.ledger import TRANSITIONS, EntryState
from storage.settings import Settings
from tasks.execution.runtime import ORDINARY_ENDS
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.registry import build
from tasks.steps.job import MethodConfig
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


def test_examples_of_the_site_file_are_accepted(tmp_path):
    site_file, path = script("site_file"), tmp_path / "example.yaml"
    whole = yaml.safe_load(site_file.EXAMPLE)
    for example in ("", site_file.OMOP_EXAMPLE, site_file.FHIR_EXAMPLE):
        block = example.partition("```yaml\n")[2].partition("```")[0]
        path.write_text(yaml.safe_dump(whole | (yaml.safe_load(block) or {})), encoding="utf-8")
        site = load_site(path)
        assert block or site.privacy_unit.max_rows_per_patient == 3
        assert not block or site.source.features[-1].column in ("died", "diabetes")


def test_results_are_those_of_the_stored_rows():
    written = report.files(Stored.read())
    for name, text in written.items():
        known = (DOCS / name).read_text(encoding="utf-8")
        assert known == text, f"{name}: run python -m benchmarks report"
    assert written["results.md"].count("<!-- end -->") == 10
    html = written["results.html"]
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html), "another file"
    assert all(row.command in html for row in Stored.read().rows if row.suite == "nist")
    assert (DOCS / "report.png").stat().st_size <= 200_000


def test_picture_is_what_its_script_draws():
    drawn = (DOCS / "flow.svg").read_text(encoding="utf-8")
    assert script("flow_picture").picture() == drawn, "run: python docs/flow_picture.py"


def counterexample():
    return module_at(ROOT / "tests" / "counterexamples" / "test_clustmix_three_leaks.py")


@pytest.mark.parametrize("row", table_after(METHODS, "### The counterexample"))
def test_counterexample_table(row):
    assert counterexample().flip_delta(int(row[0])) == pytest.approx(float(row[4]), rel=0.02)


@pytest.mark.parametrize("row", table_after(METHODS, "### The size of a cluster"))
def test_table_of_the_leak_by_the_noise_of_a_cluster(row):
    found = counterexample().size_delta(int(row[0]), int(row[1]))
    assert found == pytest.approx(float(row[2]), rel=0.02)


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


def test_every_state_of_the_ledger_is_explained_with_what_may_follow():
    documented = {
        row[0].strip("`"): set(re.findall(r"`(\w+)`", row[3]))
        for row in table_after(LEDGER, "## The states of an entry")
    }
    assert documented == {
        state.name: {following.name for following in TRANSITIONS[state]} for state in EntryState
    }


def listed(heading):
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


def codes_of(kind):
    """Codes of the errors of a class: in lists of refusals, and in calls of the class."""
    files = [path for top in ("flows", "storage") for path in ROOT.glob(f"{top}/**/refusals.toml")]
    lists = [tomllib.loads(path.read_text("utf-8")) for path in files]
    calls = re.findall(rf'{kind}\(\s*"([A-Z_]+)"', source_of("flows/watching", "storage"))
    return {*calls, *(key.split()[0] for refusals in lists for key in refusals.get(kind, ()))}


def test_every_code_of_an_error_is_one_of_the_program():
    states = {state.name for state in EntryState}
    variables = {f"CLUSTMIX_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", OPERATE + LEDGER)) - states - variables
    source = source_of("clustmix", "flows", "privacy", "storage", "tasks")
    # Those of Prefect and of clients of S3 are variables of theirs.
    listed_codes = codes_of("InputError") | codes_of("ConfigurationError")
    unknown = {name for name in named - listed_codes if f'"{name}"' not in source}
    assert not [name for name in unknown if not name.startswith(("PREFECT_", "AWS_"))]
    assert {"LEDGER_ROLLED_BACK", "KEY_LOST", "FILE_CHANGED"} <= named


def test_every_field_of_a_form_is_explained():
    titles = [field.title for field in ReleaseRequest.model_fields.values()]
    assert listed("## Release by hand")[: len(titles)] == titles
    assert f"`{PublishRequest.model_fields['decision'].title}`" in OPERATE


def test_every_refusal_of_an_arrival_is_explained():
    refusals = {code for code in codes_of("InputError") if code.startswith("ARRIVAL_")}
    assert set(listed("### Refused arrivals")) == refusals
    for code in codes_of("ConfigurationError"):
        assert not code.startswith(("LANDING_", "ARRIVALS_")) or f"`{code}`" in OPERATE, code


def test_every_end_and_artifact_of_a_run_is_explained():
    ends = {name for name in listed("## What an operator sees") if "-" not in name}
    assert {"Completed", "Waiting", "Failed", "Crashed", *ORDINARY_ENDS.values()} == ends
    assert set(re.findall(r'Completed\(name="(\w+)"', source_of("flows"))) <= ends
    text = OPERATE.split("## What an operator sees")[1].split("### Data of the orchestrator")[0]
    documented = set(re.findall(r"^- `([a-z]+)-DATASET`", text, flags=re.M))
    shown = set(re.findall(r'(?:key=|_show\()f"([a-z]+)-\{', source_of("flows")))
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
