import math

import pytest

from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters, PrivacyUnit


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_epsilon_outside_its_range_is_refused(epsilon):
    with pytest.raises(ConfigurationError, match="EPSILON_INVALID: expected epsilon to be a fin"):
        PrivacyParameters(epsilon=epsilon, delta=1e-6)


@pytest.mark.parametrize("delta", [0.0, -1e-6, 1e-3, 1.0, math.nan])
def test_delta_outside_its_range_is_refused(delta):
    with pytest.raises(ConfigurationError, match="DELTA_INVALID: expected delta above 0 and bel"):
        PrivacyParameters(epsilon=1.0, delta=delta)


@pytest.mark.parametrize(
    ("column", "max_rows", "message"),
    [
        ("patient", 0, "expected max_rows of at least 1, and 1 without .*, found 0"),
        (None, 2, "expected max_rows .* 1 without a patient column, found 2"),
        (" ", 1, "found an empty name; leave it out"),
    ],
)
def test_a_unit_that_cannot_be_enforced_is_refused(column, max_rows, message):
    with pytest.raises(ConfigurationError, match=message):
        PrivacyUnit(column=column, max_rows=max_rows)
