"""Every method of the product on 5,000 rows of three tables, one draw each: minutes in all.

DP-CDA and DPGM, which train for minutes, run on the first table alone.
"""

from benchmarks.releases import main

if __name__ == "__main__":
    main()
