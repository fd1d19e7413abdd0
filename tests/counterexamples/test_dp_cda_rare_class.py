"""DP-CDA, rare class: the analysis of the paper divides by all records, the algorithm by the class.

Saha, Tonoy and Imtiaz, "DP-CDA: an algorithm for enhanced privacy preservation in dataset synthesis
through randomized mixing". Theorem 1 takes the sampling rate ``l / N``; step 10 of Algorithm 1
draws ``l`` of the ``N_k`` records of one class. For a class of one record in fifty the true rate is
fifty times as large.

The pair: two classes, every record at ``-c``, except one record of the rare class at ``+c``. In the
neighbour that record is at ``-c`` and has the other label. All outputs of the other class, and all
labels, have the same law on both.
"""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from measuring import domain_with, rows_with
from printed_theorem import printed_theorem

from privacy.calibration import gdp_mu
from tasks.methods.dp_cda.dp_cda import DpCda
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig
from tests.counterexamples.attacks import measured_epsilon, mu_between

N, N_CLASSES, N_SYNTHETIC, MIXED, CLIP, DELTA = 50_000, 2, 10_000, 16, 1.0, 1e-5
PER_CLASS = N_SYNTHETIC // N_CLASSES
NOISE = 0.1181
"""sigma_x, for which Theorem 1 claims epsilon = 1.00."""


def paper_epsilon(*, rate, n_outputs, noise, of_source=True):
    """Theorem 1, without label noise, which would only add to the claim."""
    return printed_theorem(
        MIXED * noise / (2 * CLIP),
        order=MIXED,
        n_records=MIXED / rate,
        n_outputs=n_outputs,
        delta=DELTA,
        orders=range(3, 33),
        of_source=of_source,
        simpler=False,
    )


# --- the printed algorithm, and the proven one --------------------------------------------------


def paper_class(records, rng):
    """Steps 9 to 11 for one class: means of ``l`` records without replacement, plus noise."""
    index = rng.integers(len(records), size=(PER_CLASS, MIXED))
    while True:
        # Uniform without replacement: samples with a record in it twice are drawn again.
        in_order = np.sort(index, axis=1)
        [repeated] = np.nonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1))
        if not len(repeated):
            break
        index[repeated] = rng.integers(len(records), size=(len(repeated), MIXED))
    return records[index].mean(axis=1) + rng.normal(0.0, NOISE, PER_CLASS)


def rare_class(n_members, *, with_the_record):
    """The rare class of the two neighbours; the record is the only one that is not at -c."""
    records = np.full(n_members - 1, -CLIP)
    return np.append(records, CLIP) if with_the_record else records


# --- measures ------------------------------------------------------------------------------------


def lower_bound_of_epsilon(*, noise_multiplier, rate, n_outputs, interval):
    """Epsilon of n sampled Gaussians at DELTA, every privacy loss rounded down."""
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=rate,
        pessimistic_estimate=False,
        value_discretization_interval=interval,
        use_connect_dots=False,
    ).self_compose(n_outputs)
    # The library truncates tails of 1e-15 on the pessimistic side whatever was asked.
    return loss.get_epsilon_for_delta(DELTA * (1 + 1e-6))


def log_likelihood_ratio(outputs, *, moved, rate, noise):
    """Of outputs that move by `moved` when the record is sampled, against outputs around zero."""
    shifted = (outputs * moved - moved**2 / 2) / noise**2
    return float(np.log1p(rate * np.expm1(shifted)).sum())


# --- tests ---------------------------------------------------------------------------------------


def test_paper_claim_is_one():
    claim = paper_epsilon(rate=MIXED / N, n_outputs=N_SYNTHETIC, noise=NOISE)
    assert claim == pytest.approx(1.0, abs=0.005)


def test_theorem_as_printed_has_no_value():
    with pytest.raises(ValueError, match="root of a negative number at alpha 5"):
        paper_epsilon(rate=MIXED / N, n_outputs=N_SYNTHETIC, noise=NOISE, of_source=False)


def paper_lower_bound(n_members):
    """With the record, an output is the mixture of a sampled Gaussian; without it, one Gaussian."""
    return lower_bound_of_epsilon(
        noise_multiplier=MIXED * NOISE / (2 * CLIP),
        rate=MIXED / n_members,
        n_outputs=PER_CLASS,
        interval=5e-5,
    )


@pytest.mark.parametrize(("n_members", "at_least"), [(1_000, 7.9), (2_500, 2.7)])
def test_paper_algorithm_exceeds_its_claim(n_members, at_least):
    assert paper_lower_bound(n_members) >= at_least > 1.0


def test_paper_analysis_at_the_true_rate_would_not_claim_it():
    # The flaw is the rate: the same formula with the members of the class stays above the truth.
    assert paper_epsilon(rate=MIXED / 1_000, n_outputs=PER_CLASS, noise=NOISE) > 8.1


@pytest.mark.integration
def test_paper_algorithm_is_caught_by_running_it():
    rng = np.random.default_rng(20)
    present, absent = (
        [
            log_likelihood_ratio(
                CLIP + paper_class(rare_class(1_000, with_the_record=record), rng),
                moved=2 * CLIP / MIXED,
                rate=MIXED / 1_000,
                noise=NOISE,
            )
            for _ in range(400)
        ]
        for record in (True, False)
    )
    assert measured_epsilon(present, absent, threshold=1.5, delta=DELTA) > 1.0


DOMAIN = domain_with(11, numeric=[0])


@pytest.mark.parametrize("n_members", [1, 2, 40])
def test_proven_form_keeps_its_claim_on_the_same_pair(n_members):
    # However small the class: groups and divisors are public, and the record is one of its class.
    codes = np.append(np.full(200, 5), np.full(n_members, 10))
    label = np.append(np.zeros(200), np.ones(n_members))
    present = rows_with(codes[:, None], label)
    absent = rows_with(codes[:-1, None], label[:-1])
    method = DpCda(DOMAIN, DpCdaConfig(order_of_mixture=MIXED, declared_patients=200))
    claim = gdp_mu(epsilon=1.0, delta=DELTA)
    assert 0.1 * claim < mu_between(method, present, absent, mu=claim) <= claim


@pytest.mark.parametrize(
    ("table", "replacement", "before", "after"),
    [
        (np.repeat([1.0, -1.0], 5_000), 1e6, 1.0, -0.0099),
        (np.repeat([1.0, -1.0], 50), 10.0, 1.0, 0.646),
    ],
)
def test_one_record_moves_the_z_score_of_every_other(table, replacement, before, after):
    # Lines 2 to 5, before any sampling or noise, and no part of the proof (flaw A1).
    def z_score(values):
        return (values - values.mean()) / values.std()

    changed = table.copy()
    changed[0] = replacement
    assert z_score(table)[1] == pytest.approx(before, abs=1e-6)
    assert z_score(changed)[1] == pytest.approx(after, rel=0.01)
