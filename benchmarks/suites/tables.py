"""Tables of patients: releases of ClustMix, naive Bayes and a peer, and the real rows, by splits.

``python -m benchmarks.suites.tables --dataset D --method M [--epsilon E] --split N`` runs one job.
"""

from benchmarks.releases import main

if __name__ == "__main__":
    main()
