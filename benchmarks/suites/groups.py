"""AUC by sex and age, importances and calibration of a release, on one split each.

The command is that of `benchmarks.suites.tables`; its earlier rows have no such figures.
"""

from benchmarks.releases import main

if __name__ == "__main__":
    main()
