import copy

import pytest

from privacy import errors


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.ClustMixError, 1),
        (errors.ConfigurationError, 2),
        (errors.InputError, 2),
        (errors.BudgetRefused, 3),
        (errors.Withheld, 4),
        (errors.LedgerError, 1),
        (errors.IntegrityError, 1),
    ],
)
def test_an_error_has_a_code_a_message_and_an_exit_code(kind, exit_code):
    error = kind("SOME_CODE", "expected this; do that")
    assert (error.code, error.message) == ("SOME_CODE", "expected this; do that")
    assert str(error) == "SOME_CODE: expected this; do that"
    assert error.exit_code == exit_code
    assert issubclass(kind, errors.ClustMixError)


def test_an_error_survives_the_way_between_processes():
    # copy uses the protocol of pickling, which carries exceptions between processes.
    error = copy.copy(errors.BudgetRefused("BUDGET_EXCEEDED", "no"))
    assert isinstance(error, errors.BudgetRefused)
    assert (error.code, error.message, str(error)) == (
        "BUDGET_EXCEEDED",
        "no",
        "BUDGET_EXCEEDED: no",
    )
