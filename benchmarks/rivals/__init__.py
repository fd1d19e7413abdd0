"""Rivals: methods to compare with, on public data alone. Nothing here can make a release.

Two forms. A *printed* form is an algorithm as its paper prints it; its epsilon is claimed by the
paper and not proven, and `tests/counterexamples` break several of the claims. An *accounted* form
is a method whose noise is calibrated here, to add or remove of one record; it has no integer grid,
no bounded contributions, no ledger and a seedable generator, so it is no more than a yardstick.

``python -m benchmarks.rivals METHOD --dataset SITE`` runs one (`benchmarks.rivals.__main__`).
"""
