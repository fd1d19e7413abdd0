import json

import numpy as np
import pandas as pd
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from measuring import assert_valid, domain_with, every_record, random_records

from benchmarks.rivals import __main__ as command
from benchmarks.rivals.labelled_vectors import LabelledVectors
from benchmarks.rivals.noise import concentrated_rho, poisson_noise_multiplier
from benchmarks.rivals.registry import RIVALS
from privacy.parameters import PrivacyParameters

DOMAIN = domain_with(4, 2, 3, numeric=(0, 2), missing=[0])
PARAMETERS = PrivacyParameters(epsilon=10.0, delta=1e-5)
SMALL = {
    "clustmix": {"sigma_max": 1.0, "kip_steps": 3, "hidden_layers": 1},
    "dp_cda": {"order_of_mixture": 8, "mixtures_per_class": 20},
    "dpgm": {
        "clusters": 2, "hidden_units": 2, "fourier_features": 4, "network": "vae", "epochs": 1,
        "sampling_probability": 0.2, "clustering_rounds": 2,
    },
    "dp_merf": {
        "fourier_features": 10, "hidden_units": (4,), "steps_per_stage": 2, "held_aside": 20,
    },
    "mwem": {"rounds": 4, "passes": 2},
    "dp_mix": {"n_mixtures": 20, "declared_patients": 120},
    "local_perturbation": {"n_slots": 20},
    "random_projection": {"n_slots": 20, "n_projected": 2},
}  # fmt: skip
FORMS = [(name, form) for name, entry in RIVALS.items() for form in entry.forms]


def rival(name, form, *, parameters=PARAMETERS, domain=DOMAIN, **changes):
    entry = RIVALS[name]
    settings = entry.settings_class()(**SMALL[name] | changes)
    return entry.build(form, domain, settings, parameters)


@pytest.mark.integration
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_form_makes_valid_records_from_a_seed(name, form):
    codes, labels = random_records(DOMAIN, 120, 5)
    made, again = (
        rival(name, form).synthesize(codes, labels, np.random.default_rng(6)) for _ in range(2)
    )
    assert len(made[0]) > 0
    assert_valid(DOMAIN, *made, len(made[0]))
    np.testing.assert_array_equal(made[0], again[0])
    np.testing.assert_array_equal(made[1], again[1])


def answered(capsys, *arguments):
    assert command.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_file_and_every_row_says_that_nothing_is_proven(tmp_path, capsys):
    arguments = ("--dataset", "breast-cancer", "--seed", "1", "--output", str(tmp_path))
    found = answered(capsys, "local_perturbation", *arguments, "--set", "label_noise_ratio=0.5")
    folder = command.Path(found["folder"])
    assert found["claim"].startswith("not proven, benchmark only")
    assert found["rows"] == 569
    tables = pd.read_parquet(folder / "synthetic.parquet"), pd.read_csv(folder / "synthetic.csv")
    assert all(set(table["not_proven"]) == {command.MARK} for table in tables)
    for name in ("schema.json", "claim.json"):
        assert json.loads((folder / name).read_text())["not_proven"] == command.MARK
    assert json.loads((folder / "claim.json").read_text())["settings"]["label_noise_ratio"] == 0.5
    assert not (folder / "manifest.json").exists()


def test_private_data_is_refused(tmp_path):
    private = command.site_of("breast-cancer").model_copy(update={"public_benchmark_data": False})
    with pytest.raises(command.ConfigurationError, match="NOT_PUBLIC_DATA"):
        command.run("mwem", private, output=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_budgets_of_rivals_keep_epsilon():
    concentrated, sampled = RdpAccountant(), PLDAccountant()
    concentrated.compose(dp_event.ZCDpEvent(concentrated_rho(PARAMETERS)))
    noise = poisson_noise_multiplier(PARAMETERS, probability=0.1, n_draws=50)
    draw = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(noise))
    sampled.compose(dp_event.SelfComposedDpEvent(draw, 50))
    for engine, error in ((concentrated, 1e-3), (sampled, 0.01)):
        assert engine.get_epsilon(1e-5) == pytest.approx(10.0, rel=error)


@pytest.mark.parametrize("clip", [None, 0.7])
def test_no_labelled_vector_is_longer_than_its_bound(clip):
    vectors = LabelledVectors(domain=DOMAIN, l2_clip_norm=clip, label_share=0.2)
    records = every_record(DOMAIN)
    found = vectors.vectors(records, np.ones(len(records), dtype=np.uint16))
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(vectors.l2_bound)
