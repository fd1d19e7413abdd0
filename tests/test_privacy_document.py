import ast
import math
import re
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
import yaml
from scipy.stats import norm

from flows.site.site_file import SiteFile, load_site
from privacy.calibration import gdp_mu, gdp_rho
from privacy.errors import ConfigurationError
from privacy.gaussian import gaussian_epsilon
from tasks.ingest.contributions import part_of_patients
from tests.documents import module_at, table_after
from tests.processes import ROOT

PAGE = ROOT / "docs" / "privacy.md"
TEXT = PAGE.read_text(encoding="utf-8")
DELTA = 1e-6

TESTS = sorted(set(re.findall(r"\[(test_\w+)\]\((\.\./tests/[^)]+)\)", TEXT)))
LINKS = sorted(set(re.findall(r"\]\((\.\./tests/[^)]+)\)", TEXT)))


def up(value, like):
    return str(Decimal(value).quantize(Decimal(like), rounding=ROUND_CEILING))


def nearest(value, like):
    return str(Decimal(value).quantize(Decimal(like), rounding=ROUND_HALF_EVEN))


def found_of_100(mu):
    """Present patients found at 5 false alarms of 100 (Dong, Roth and Su 2022, equation 6)."""
    return str(math.ceil(100 * norm.cdf(norm.ppf(0.05) + mu)))


def counterexample(name):
    return module_at(ROOT / "tests" / "counterexamples" / f"test_{name}.py")


def test_every_named_test_exists():
    functions = {}
    for link in LINKS:
        path = (PAGE.parent / link).resolve()
        assert path.is_relative_to(ROOT / "tests")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions[link] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert len(TESTS) > 100
    assert [(name, link) for name, link in TESTS if name not in functions[link]] == []


def test_every_test_name_on_the_page_is_a_link():
    shown = re.findall(r"\btest_\w+", re.sub(r"\]\([^)]*\)", "]", TEXT))
    assert len(shown) == len(re.findall(r"\[test_\w+\]\(\.\./tests/", TEXT))


@pytest.mark.parametrize(
    "section",
    ["## The guarantee", "## How it is proven", "## How it is kept", "## What it stands on"],
)
def test_every_paragraph_that_claims_names_a_test(section):
    body = re.split(r"^## ", TEXT.split(f"{section}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    claims = re.split(r"\n(?=- |\d\. |\*\*)|\n\n", body)
    bold_or_item = [claim for claim in claims if re.match(r"- |\d\. |\*\*", claim.strip())]
    # The statements themselves, what is outside, and the theorem, whose proof is below it.
    without = {
        claim.strip().split(".")[0].strip("*- ").split(" of the")[0]
        for claim in bold_or_item
        if "(../tests/" not in claim
    }
    assert without <= {
        "Statement",
        "Theorem",
        "Proof**, in six steps",
        "Run times are not hidden",
        "Data collection",
    }


def test_every_threat_has_a_test():
    section = TEXT.split("## Threats")[1].split("\n## ")[0]
    threats = re.findall(r"^- (T\d+) .*\(\.\./tests/", section, flags=re.M)
    assert threats == [f"T{number}" for number in range(1, 21)]


@pytest.mark.parametrize(
    "row", table_after(TEXT, "### What the numbers mean"), ids=lambda row: row[0]
)
def test_meaning_of_an_epsilon(row):
    mu = gdp_mu(epsilon=float(row[0]), delta=DELTA)
    rho = gdp_rho(epsilon=float(row[0]), delta=DELTA)
    replaced = gaussian_epsilon(delta=DELTA, mu=2 * mu)
    assert row[1:] == [
        nearest(mu, row[1]),
        nearest(rho, row[2]),
        up(replaced, row[3]),
        found_of_100(mu),
    ]


@pytest.mark.parametrize("row", table_after(TEXT, "### Groups"), ids=lambda row: row[0])
def test_group_of_patients(row):
    mu = int(row[0]) * gdp_mu(epsilon=1.0, delta=DELTA)
    epsilon = gaussian_epsilon(delta=DELTA, mu=mu)
    assert row[1:] == [up(mu, row[1]), up(epsilon, row[2]), found_of_100(mu)]


@pytest.mark.parametrize("row", table_after(TEXT, "### Repeated releases"), ids=lambda row: row[0])
def test_repeated_releases(row):
    rho = int(row[0]) * gdp_rho(epsilon=1.0, delta=DELTA)
    epsilon = gaussian_epsilon(delta=DELTA, mu=math.sqrt(2 * rho))
    assert row[1:] == [nearest(rho, row[1]), up(epsilon, row[2])]


def number(cell):
    return float(re.fullmatch(r"(?:epsilon|delta) ([\d.]+)(?: at epsilon 1)?", cell).group(1))


@pytest.mark.integration
def test_paper_analyses_that_fail():
    clustmix, dp_cda = counterexample("clustmix_three_leaks"), counterexample("dp_cda_rare_class")
    dpgm, moment = counterexample("dpgm_small_cluster"), counterexample("dpgm_gaussian_moment")
    coins = counterexample("dependent_coins")
    noise = dpgm.paper_noise()
    theorem_1 = dp_cda.paper_epsilon(
        rate=dp_cda.MIXED / dp_cda.N, n_outputs=dp_cda.N_SYNTHETIC, noise=dp_cda.NOISE
    )
    lemma_1 = moment.moments_epsilon(lambda order: moment.lemma_one(order, moment.SIGMA))
    computed = [
        (clustmix.DELTA, clustmix.flip_delta()),
        (clustmix.DELTA, clustmix.size_delta()),
        (clustmix.DELTA, 1.0),  # two rows of output or one, with certainty
        (theorem_1, dp_cda.paper_lower_bound(1_000)),
        (theorem_1, dp_cda.paper_lower_bound(2_500)),
        *[
            (dpgm.claimed_epsilon(noise), dpgm.paper_lower_bound(share, noise))
            for share in (0.1, 0.02, 0.01)
        ],
        (lemma_1, gaussian_epsilon(delta=moment.DELTA, mu=1 / moment.SIGMA)),
    ]
    rows = table_after(TEXT, "### Published analyses that fail")
    assert rows[-1][1:3] == ["epsilon 0.00", "no epsilon"]
    assert coins.delta_at(100.0, coins.masked, coins.the_coin) == 1
    for row, (claim, truth) in zip(rows[:-1], computed, strict=True):
        assert number(row[1]) == pytest.approx(claim, abs=0.006 if claim > 0.1 else 1e-9), row[0]
        # Rounded down, as a lower bound has to be.
        assert 0 <= truth - number(row[2]) < 0.1, row[0]
        assert number(row[2]) > number(row[1]), row[0]


SITE = ROOT / "deployments" / "sites" / "breast-cancer.yaml"


def test_no_key_of_the_site_file_takes_a_seed(tmp_path):
    schema = SiteFile.model_json_schema(by_alias=True)
    keys = {
        key for model in [schema, *schema["$defs"].values()] for key in model.get("properties", {})
    }
    assert not [key for key in keys if re.search("seed|random_state|deterministic", key)]
    for section in (None, "privacy", "method", "privacy_unit", "budget"):
        document = yaml.safe_load(SITE.read_text(encoding="utf-8"))
        part = document if section is None else document[section]
        part["seed"] = 1
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        with pytest.raises(ConfigurationError, match="seed"):
            load_site(path)


@pytest.mark.parametrize("parts", [2, 7])
def test_a_patient_is_in_one_part_whoever_else_is_there(parts):
    # Parts have no patient in common, in this table and in every later one.
    keys = np.array([f"MRN-{number}" for number in range(400)] * 2, dtype=object)
    together = part_of_patients(keys, scheme="years", parts=parts)
    np.testing.assert_array_equal(together[:400], together[400:])
    for number in (0, 17, 399):
        [alone] = part_of_patients(keys[number : number + 1], scheme="years", parts=parts)
        assert alone == together[number]
    counts = np.bincount(together[:400], minlength=parts)
    assert len(counts) == parts
    # Six standard deviations of a fair split.
    assert np.all(np.abs(counts - 400 / parts) < 6 * math.sqrt(400 / parts))
    other = part_of_patients(keys, scheme="wards", parts=parts)
    assert np.any(other != together)
