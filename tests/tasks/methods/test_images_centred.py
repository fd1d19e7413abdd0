"""What a centre of one half saves on images: every image there can be, added and removed."""

import math

import numpy as np
import pytest
from measuring import domain_with, every_labelled_record, transcript_of

from audits.pairs import AuditPatient, encode
from tasks.measurement.curator import exact_sum, in_memory
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig
from tasks.methods.registry import build

SIDE = 2
DOMAIN = domain_with(*(3,) * SIDE**2, numeric=range(SIDE**2), image=(SIDE, SIDE, 1))
MIX = {"order_of_mixture": 4, "declared_patients": 40, "one_hot_levels": 0}


def rows_of(*patients):
    return encode([AuditPatient(records=p, fold=0) for p in patients], n_columns=SIDE**2)


def test_an_image_is_half_as_long_from_the_middle_and_one_is_as_long():
    method, images = build(DpCdaConfig(**MIX), DOMAIN), every_labelled_record(DOMAIN)
    others = [tuple(images[i] for i in pair) for pair in ((3, 90), (40, 41), (7, 7))]
    draws, _ = transcript_of(method, rows_of(*others), mu=1.0)
    noisy, contribution, public = draws[-1]

    def summed(*patients):
        return exact_sum(contribution, public, in_memory([rows_of(*patients)])).astype(float)

    # From 0 the longest of d pixels in [0, 1] is sqrt(d), from one half it is half of that.
    bound = method.plan(mu=1.0)[noisy.event.statistic].l2_sensitivity
    assert bound == pytest.approx(SUM_SCALE * math.sqrt(SIDE**2) / 2)
    without = summed(*others)
    patients = [(image,) for image in images] + [(images[0], images[-1]), (images[0],) * 3]
    moved = [np.linalg.norm(summed(*others, patient) - without) for patient in patients]
    assert 0.98 * bound < max(moved) <= bound
