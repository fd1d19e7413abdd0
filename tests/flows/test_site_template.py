import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.site.site_file import PLACEHOLDER, load_site
from flows.site.template import site_template
from privacy.errors import ConfigurationError

HEADER = ["patient", "age", "lactate", "ward", "no", "when (first): #1"]
TYPES = {"patient": "int64", "age": "int32", "lactate": "double", "ward": "string"}


def test_template_names_every_column_with_its_kind():
    data = yaml.safe_load(site_template(HEADER, TYPES))
    columns = data["schema"]["columns"]
    assert [column["name"] for column in columns] == HEADER
    kinds = ["integer", "integer", "real", "categorical", PLACEHOLDER, PLACEHOLDER]
    assert [column["kind"] for column in columns] == kinds
    assert columns[2].keys() == {"name", "kind", "lower", "upper", "bins", "decimals"}
    assert columns[3].keys() == {"name", "kind", "levels"}


@settings(deadline=None)
@given(header=st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_column_name_survives(header):
    data = yaml.safe_load(site_template(header))
    assert [column["name"] for column in data["schema"]["columns"]] == header


def test_a_template_is_refused_until_it_is_filled_in(tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text(site_template(HEADER, TYPES))
    with pytest.raises(
        ConfigurationError, match=r"SITE_INCOMPLETE: new\.yaml: dataset: expected a"
    ):
        load_site(path)


def filled_in(template):
    data = yaml.safe_load(template)
    age, ward, _ = data["schema"]["columns"]
    age.update(lower=0, upper=110, bins=11)
    ward.update(levels=["A", "B"])
    data["schema"]["columns"] = [age, ward]
    data["schema"]["label"] = {"name": "died", "levels": {"no": [0], "yes": [1]}}
    data["source"] = {"kind": "csv", "path": "cohort.csv"}
    data["privacy_unit"] = {"column": "patient", "max_rows_per_patient": 2}
    data["privacy"] = {"epsilon": 1.0, "delta": 1e-6}
    data["budget"]["lifetime_epsilon"] = 2.0
    data.update(dataset="wards", title="Wards", patients=1000)
    return yaml.safe_dump(data)


TEMPLATE = site_template(["age", "ward", "died"], {"age": "int64", "ward": "str"})


def test_a_template_that_is_filled_in_loads_with_what_its_comments_offer(tmp_path):
    path = tmp_path / "wards.yaml"
    path.write_text(filled_in(TEMPLATE))
    site = load_site(path)
    assert site.columns_to_read == ("age", "ward", "died", "patient")
    assert site.budget.model_dump(exclude_none=True) == {"lifetime_epsilon": 2.0}
    assert site.approval == "none"
    offered = re.sub(
        r"^( *)# (?=(?:cohort|dataset_epsilon|window|approval): )", r"\1", TEMPLATE, flags=re.M
    )
    path.write_text(filled_in(offered))
    site = load_site(path)
    assert site.cohort == "heart-failure"
    assert (site.budget.dataset_epsilon, site.budget.window.days) == (2.0, 365)
    assert site.approval == "officer"
