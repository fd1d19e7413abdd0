import copy

from privacy import errors


def test_an_error_survives_the_way_between_processes():
    # copy uses the protocol of pickling, which carries exceptions between processes.
    error = copy.copy(errors.BudgetRefused("BUDGET_EXCEEDED", "no"))
    assert isinstance(error, errors.BudgetRefused)
    assert (error.code, error.message, str(error)) == (
        "BUDGET_EXCEEDED",
        "no",
        "BUDGET_EXCEEDED: no",
    )
