"""Tables of patients: releases of ClustMix, naive Bayes and a peer, and real rows, by splits."""

from benchmarks.releases import main

if __name__ == "__main__":
    main()
