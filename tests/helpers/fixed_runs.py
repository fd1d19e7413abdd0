"""Runs whose randomness a test chooses; what they draw is tainted and cannot be published."""

from unittest import mock

from tasks.measurement import run_randomness


def fixed_randomness(randomness):
    """Use this randomness in the block, in all threads of this process."""
    return mock.patch.object(run_randomness, "Randomness", return_value=randomness)
