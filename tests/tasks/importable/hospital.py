"""Datasets of the installations of the tests."""

import made_up_release as made

from privacy.calibration import gdp_rho

WARD, MIXED = "ward", "mixed"
"""Datasets: one that arrives, and one with several draws, between which workers compute."""


def prepare(installation):
    installation.add_site(WARD)
    installation.add_site(MIXED, method=made.SMALL_CLUSTMIX)


def cap_for(n_releases):
    """Return the smallest lifetime epsilon that pays for so many releases of epsilon 1."""
    cap, charge = 1.0, gdp_rho(epsilon=1.0, delta=1e-5)
    while gdp_rho(epsilon=cap, delta=1e-5) < n_releases * charge:
        cap *= 1.001
    return cap
