"""ClustMix as printed (Algorithm 2 of the 3A paper): for comparison, never for release.

The paper claims (epsilon, delta)-differential privacy for this algorithm; the claim is not proven.
Its proof covers the mean of one fixed cluster of public size. Everything before that mean reads the
raw rows, and each module's docstring names the flaws that it carries, by the numbers C1 to C12
of ``docs/methods.md`` (Why the published proof fails).
"""
