"""DPGM as printed: for comparison, never for release.

The paper claims (epsilon, delta)-differential privacy under replacement of one record; the claim is
not proven. The docstrings of the modules name the flaws by these numbers:

G1  Lemma 1 has a moment of ``(l^2 + l) / (4 sigma^2)``; it is twice that
G2  the sum of a cluster changes by up to ``2 C_s`` under replacement, not ``sqrt(2) C_s``; under
    add or remove G1 and G2 cancel, and Eq. 4 is right for one assignment per iteration
G4  features have norm at most one in expectation only; the clipping of line 5 is what bounds them
G5  assignment and update alternate cluster by cluster: a record may be counted several times
G6  choosing a cluster with probability ``|D_s| / |D|`` and sampling it at ``L / |D_s|`` costs more
    than sampling everybody at ``L / |D|``, not less
G7  the exact sizes ``|D_s|`` and ``|D|`` choose clusters and set rates
G8  Theorem 3 adds up mechanisms that share their coins; it is false
G9  Eq. 4 counts the choice of the clipping norm once per iteration; it is made once
G10 records are generated with weights by exact sizes, as many as there are real ones
G11 first centres are records of the same distribution; delta = 1 / |D|; tuning is not counted
"""
