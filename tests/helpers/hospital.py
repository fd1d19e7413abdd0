"""What the installations of the tests have in common: their datasets and the people who decide."""

import made_up_release as made

from privacy.calibration import gdp_rho

WARD, POOR, DECIDED, MIXED = "ward", "poor", "decided", "mixed"
"""Datasets: one that arrives, one whose budget pays once, one that officers decide on, and one with
several draws, between which workers compute."""


def prepare(installation):
    installation.add_site(WARD)
    installation.add_site(POOR, lifetime_epsilon=1.0)
    installation.add_site(DECIDED, approval="officer")
    installation.add_site(MIXED, method=made.SMALL_CLUSTMIX)
    # An officer as well: it is the person that matters, not the list.
    requester = installation.add_person("requester", is_officer=True)
    installation.add_person("officer", is_officer=True)
    installation.add_person("stranger", is_officer=False)
    installation.environment["CLUSTMIX_REQUESTER"] = requester.key_id


def cap_for(n_releases):
    """Return the smallest lifetime epsilon that pays for so many releases of epsilon 1."""
    cap, charge = 1.0, gdp_rho(epsilon=1.0, delta=1e-5)
    while gdp_rho(epsilon=cap, delta=1e-5) < n_releases * charge:
        cap *= 1.001
    return cap
