import numpy as np
from measuring import released_of

from tasks.methods.naive_bayes import NaiveBayes


def test_equals_a_hand_calculation_without_noise(small):
    patients = [
        (0, [((0, 0, 0), 0)]),
        (1, [((0, 1, 1), 0)]),
        (2, [((3, 1, 2), 1), ((1, 1, 2), 1)]),
        (3, [((3, 1, 2), 0), ((2, 0, 0), 1)]),
    ]
    method = NaiveBayes(small.domain)
    released = released_of(method, small.rows(patients), mu=1e4)
    # Label 0 has 2.5 patients, label 1 has 1.5.
    np.testing.assert_allclose(released["label_frequencies"], [0.625, 0.375], atol=1e-6)
    no = [2 / 2.5, 0, 0, 0.5 / 2.5, 1 / 2.5, 1.5 / 2.5, 1 / 2.5, 1 / 2.5, 0.5 / 2.5]
    yes = [0, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 1 / 1.5, 0.5 / 1.5, 0, 1 / 1.5]
    np.testing.assert_allclose(released["marginals"], [no, yes], atol=1e-6)
