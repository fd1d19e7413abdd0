"""Measurements that the earlier form of ClustMix has sealed are sampled as they always were."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.measurement.encoded import EncodingDomain
from tasks.synthesizers.clustmix.config import KEPT, ClustMixConfig
from tasks.synthesizers.clustmix.forms.synthesizer import ClustMix

SEALED = json.loads((Path(__file__).parent / "earlier_measurements.json").read_text())
"""Domain, settings and released arrays of two measurements, and what the form itself sampled."""


@pytest.mark.parametrize("measured", SEALED["measurements"], ids=["one-hot", "ordinal"])
@pytest.mark.parametrize("image", [None, (1, 3, 1)], ids=["table", "image"])
def test_an_earlier_measurement_gives_the_same_records(measured, image):
    shape = {name: tuple(value) for name, value in SEALED["domain"].items()}
    config = ClustMixConfig.model_validate(measured["settings"], context=dict(KEPT))
    method = ClustMix(EncodingDomain(**shape, image=image), config)
    released = {name: np.array(value) for name, value in measured["released"].items()}
    rng = np.random.default_rng(SEALED["seed"])
    codes, labels = method.sample(released, n_rows=SEALED["n_rows"], rng=rng)
    assert "".join(map(str, codes.ravel())) == measured["codes"]
    assert "".join(map(str, labels)) == measured["labels"]


def test_its_settings_are_refused_by_name():
    with pytest.raises(ValidationError, match="earlier form of ClustMix, found kip_steps, slices;"):
        ClustMixConfig(slices=2, kip_steps=100)
    assert ClustMixConfig(variation=0.0).model_dump().keys() == {"kind", "variation", "published"}
