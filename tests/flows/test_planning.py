import json
import re
from dataclasses import replace

import made_up_release as made
import numpy as np
import pytest
import yaml

from benchmarks.in_process import SeededNoise
from flows.cli import main
from flows.site.request import job_of
from flows.site.site_file import load_site
from flows.watching.planning import Planning
from privacy.calibration import release_mu
from tasks.measurement.centred import counts_of, label_counts
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows
from tasks.reporting.released_tables import DEVIATIONS


@pytest.fixture
def path(tmp_path):
    changes = {"privacy": {"delta": 1e-6}, "lifetime_epsilon": 5.0, "patients": 3_000}
    path = made.write_site(tmp_path, **changes)
    (tmp_path / "cohort.csv").unlink()
    return path


def job(path):
    return job_of(load_site(path), "r-20260101-00000000")


@pytest.mark.parametrize("kind", ["naive_bayes", "clustmix"])
def test_errors_are_those_of_the_noise_that_is_drawn(path, kind):
    site = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(site | {"method": {"kind": kind}}))
    asked = job(path)
    found = {each.epsilon: each for each in Planning(asked).prospects([1.0])}[1.0]
    mu = release_mu(asked.parameters, adjacency=asked.adjacency)
    plan = asked.synthesizer.plan(mu=mu)
    planned = plan.statistics[0]
    n_codes = [column.n_codes for column in asked.table_schema.columns]
    n_codes += [3] * (planned.shape[1] - 1 > sum(n_codes))
    nobody = EncodedRows(
        codes=np.zeros((0, len(made.SCHEMA["columns"])), np.uint16),
        label=np.zeros(0, np.uint16),
        weight=np.zeros(0),
        fold=np.zeros(0, np.uint8),
    )
    sizes, counts = [], []
    for seed in range(300):
        curator = Curator(plan=plan, shards=[nobody], noise_source=SeededNoise(seed))
        hidden = n_codes[4] if len(n_codes) > 4 else 0
        noisy = curator.release(
            planned.name, label_counts, n_codes=tuple(n_codes), n_labels=2, n_visits=hidden
        )
        of_labels, by_label = counts_of(noisy, n_codes)
        sizes.append(of_labels[0])
        counts.append(by_label.sum(axis=0)[:10])
    assert np.std(sizes) == pytest.approx(found.label_error / DEVIATIONS, rel=0.12)
    # Of ten codes the noise of one is a little less: they are centred.
    assert np.std(counts) == pytest.approx(0.95 * found.code_error / DEVIATIONS, rel=0.08)


def test_the_verdict_follows_from_the_table_below_it(path):
    planning = Planning(replace(job(path), patients=3_000))
    every = planning.verdict(planning.prospects())
    assert "at epsilon 1 this table carries 4 of 4 columns" in every
    few = Planning(replace(job(path), patients=100))
    found = few.prospects()
    asked = next(each for each in found if each.epsilon == 1.0)
    text = few.verdict(found)
    # Were levels as frequent as each other, 50 patients of each would be fewer than the error.
    named = f": if all are as frequent, {', '.join(few.schema.first_label.level_names)}"
    assert (asked.label_error > 50) == few.levels(found).endswith(named)
    assert few.levels(found).startswith("noise hides a level of ")
    assert 0 < len(asked.drowned)
    assert f"carries {4 - len(asked.drowned)} of 4 columns" in text
    assert f"leaves room for {int(100 / asked.code_error)} bins or levels" in text
    for name in asked.drowned:
        assert f"{name} (" in text
    needed = int(re.search(r"about ([0-9,]+) for all", text)[1].replace(",", ""))
    enough = Planning(replace(job(path), patients=int(1.1 * needed)))
    assert not next(each for each in enough.prospects([1.0])).drowned
    by_dpgm = yaml.safe_load(path.read_text()) | {"method": {"kind": "dpgm"}}
    path.write_text(yaml.safe_dump(by_dpgm))
    other = Planning(job(path))
    assert other.verdict(other.prospects()) == "none: method dpgm counts no bins or levels"


def test_pairs_that_the_budget_does_not_carry_are_named(path):
    assert Planning(job(path)).pairs is None  # naive Bayes measures no pair
    site, columns = yaml.safe_load(path.read_text()), made.SCHEMA["columns"]
    # Of six pairs three are always measured; ward has three levels, the others are cut into two.
    lost = "not measured, if codes are equally frequent: age with ward, lactate with ward, ward"
    for n, patients, said in ((1, 10, None), (4, 3_000, None), (4, 10, f"{lost} with smoker")):
        site |= {"method": {"kind": "clustmix"}, "schema": made.SCHEMA | {"columns": columns[:n]}}
        path.write_text(yaml.safe_dump(site))
        assert Planning(replace(job(path), patients=patients)).pairs == said


def test_the_command_reads_no_table_and_draws(path, capsys):
    drawing = path.parent / "plan.svg"
    assert main(["plan", str(path), "--epsilon", "0.5", "--plot", str(drawing), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["patients"] == 3_000
    assert [each["epsilon"] for each in answer["prospects"]] == [0.5, 1.0]
    assert drawing.read_bytes().startswith(b"<?xml")
    assert main(["plan", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Verdict:") < shown.index("1 (declared)") < shown.index("Lost:")
    assert "so these errors do not exist" not in shown
    site = yaml.safe_load(path.read_text("utf-8"))
    path.write_text(yaml.safe_dump({**site, "method": {"kind": "dp_cda"}}), "utf-8")
    assert main(["plan", str(path)]) == 0
    assert "dp_cda draws no counts by label, so these" in capsys.readouterr().out
    assert main(["plan", str(path), "--plot", "plan.xyz"]) == 2
    assert main(["plan", str(path), "--epsilon", "-1"]) == 2
