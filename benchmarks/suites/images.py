"""Images: releases of MNIST and Fashion-MNIST, judged by networks on the real test images.

Nothing of a method was chosen on the test images.
"""

from dataclasses import replace

from benchmarks.releases import main, table_row

DELTA = 1e-5

if __name__ == "__main__":
    main(lambda run: table_row(replace(run, delta=run.delta or DELTA)))
