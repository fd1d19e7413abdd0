import math
from unicodedata import normalize

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


@pytest.mark.parametrize("key", ["\u0390", "\u03b0", "\u1fd2", "\u1fe2", "Stra\u00dfe", "e\u0301A"])
def test_a_key_has_one_spelling_in_any_case_and_form(key):
    unit = PrivacyUnit(column="patient", max_rows=1, key_normal=("nfc", "lower"))
    forms = {normalize(form, text) for text in (key, key.upper()) for form in ("NFC", "NFD")}
    assert len({unit.spelled(form) for form in forms}) == 1
    assert unit.spelled(unit.spelled(key)) == unit.spelled(key)
