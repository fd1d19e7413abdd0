"""ClustMix as printed (Algorithm 2 of the 3A paper): for comparison, never for release.

The paper claims (epsilon, delta)-differential privacy for this algorithm; the claim is not proven.
Its proof covers the mean of one fixed cluster of public size. Everything before that mean reads the
raw rows, and each module's docstring names the flaws that it carries, by these numbers:

C1  scaling to [0, 1] and z-scoring by minima, maxima, quantiles and moments of the rows
C2  slice cut-offs are data points
C3  the number of clusters, hence of output rows, follows the exact class counts
C4  one record can move whole blocks between clusters, and their means by much more than 1/l
C5  the adapted centroids depend on every row, and the recomputed memberships may overlap
C6  a replaced record leaves one mean and enters another: two outputs change, not one
C7  the noise of a cluster follows its private size
C8  points without a noise solution, and classes too small for a cluster, are left out by exact
    counts
C9  sigma_max, alpha, lambda and the scaling are tuned on the private rows
C10 the search for the noise may stop on the side with too little noise; the algorithm box drops
    the class count that Eq. 8 has
C11 labels and class histogram come out exactly
C12 delta = 1/N is a private number and far too large
"""
