"""Runs whose randomness a test chooses; what they draw is tainted and cannot be published."""

from unittest import mock

from privacy import randomness as of_runs


def fixed_randomness(randomness):
    """Use this randomness in the block, in all threads of this process."""
    return mock.patch.object(of_runs, "Randomness", return_value=randomness)
