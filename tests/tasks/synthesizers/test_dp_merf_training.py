"""Training of DP-MERF: expected features, the unbiased loss, and what is learnt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.synthesizers.dp_merf import training
from tasks.synthesizers.dp_merf.config import DpMerfConfig
from tasks.synthesizers.dp_merf.features import EmbeddingFeatures
from tasks.synthesizers.dp_merf.generator import Generator, draw_blocks
from tasks.synthesizers.dp_merf.training import TrainingItem, expected_features, train


def generator_of(features, *, n_labels=2, seed=0):
    return Generator.start(
        code_dimensions=2,
        n_labels=n_labels,
        hidden_units=(8,),
        width=features.vector_map.width,
        public_seed=seed,
    )


def item_of(features, targets, **changes):
    settings = {
        "generator": generator_of(features),
        "features": features,
        "targets": targets,
        "label_weights": np.ones(len(targets)),
        "code_dimensions": 2,
        "batch_size": 64,
        "steps": 75,
        "learning_rate": 0.04,
        "public_seed": 1,
    }
    return TrainingItem(**{**settings, **changes})


@pytest.mark.parametrize(
    ("kind", "most_exact", "tolerance"),
    [("one_hot", 32, 0.02), ("ordinal", 32, 0.02), ("ordinal", 0, 0.05)],
)
def test_expected_features_are_the_mean_of_drawn_records(
    small, monkeypatch, kind, most_exact, tolerance
):
    monkeypatch.setattr(training, "MAX_EXACT_BINARY", most_exact)
    features = EmbeddingFeatures.draw(
        small.domain, DpMerfConfig(fourier_features=6, features=kind, length_scale=1.0)
    )
    blocks = features.vector_map.blocks
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, features.vector_map.width))
    drawn = draw_blocks(np.repeat(logits, 20_000, axis=0), blocks, rng)
    phases = drawn @ features.frequencies.T
    sampled = np.concatenate(
        [
            features.fourier_scale * np.cos(phases).mean(axis=0),
            features.fourier_scale * np.sin(phases).mean(axis=0),
            features.linear_scales * drawn.mean(axis=0),
        ]
    )
    with jax.disable_jit():
        expected = expected_features(
            jnp.asarray(logits),
            jnp.asarray(features.frequencies),
            jnp.asarray(features.linear_scales),
            blocks=blocks,
            fourier_scale=features.fourier_scale,
        )
    np.testing.assert_allclose(expected[0], sampled, atol=tolerance)


def test_training_learns_what_depends_on_the_label(small):
    """Two labels with opposite records; the generator must tell them apart."""
    features = EmbeddingFeatures.draw(small.domain, DpMerfConfig(fourier_features=40))
    records = np.array([[0, 0, 0], [3, 1, 2]], dtype=np.uint16)
    item = item_of(features, features.phi(records))
    trained = train(item)
    again = train(item)
    labels = np.repeat(np.array([0, 1], dtype=np.uint16), 200)
    rng = np.random.default_rng(0)
    codes = trained.sample(features.vector_map, labels, code_dimensions=2, rng=rng)
    agreement = (codes == records[labels]).mean(axis=0)
    assert agreement.min() > 0.9
    before = item.generator.sample(features.vector_map, labels, code_dimensions=2, rng=rng)
    assert (before == records[labels]).mean() < 0.8
    for name, array in trained.arrays.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, again.arrays[name])
        np.testing.assert_array_equal(array, Generator.of_arrays(trained.arrays).arrays[name])
