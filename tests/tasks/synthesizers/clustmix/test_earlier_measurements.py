"""What the earlier form of ClustMix has sealed is refused by name, and so are its settings."""

import numpy as np
import pytest
from pydantic import ValidationError

from privacy.errors import ConfigurationError
from tasks.measurement.encoded import EncodingDomain
from tasks.synthesizers.clustmix.config import KEPT, ClustMixConfig
from tasks.synthesizers.clustmix.forms.synthesizer import ClustMix


def test_its_measurement_and_its_settings_are_refused():
    settings = {"kind": "clustmix", "slices": 2, "kip_steps": 100}
    config = ClustMixConfig.model_validate(settings, context=dict(KEPT))
    # The settings that a release was charged for stand in its seal, and are read as they are.
    assert config.model_dump().items() >= settings.items()
    domain = EncodingDomain(
        column_names=("a",), n_codes=(2,), has_missing=(False,), numeric=(False,),
        label_levels=("no", "yes"),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"SEALED_BY_SLICES: .* version 0\.1\.0"):
        ClustMix(domain, config).sample(
            {"loadings": np.ones(3)}, n_rows=4, rng=np.random.default_rng(1)
        )
    with pytest.raises(ValidationError, match="earlier form of ClustMix, found kip_steps, slices;"):
        ClustMixConfig(slices=2, kip_steps=100)
    assert ClustMixConfig(variation=0.0).model_dump().keys() == {"kind", "variation", "published"}
