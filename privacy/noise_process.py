"""A child process that draws noise: ``python -m privacy.noise_process STDDEV COUNT``.

`privacy.randomness.OperatingSystemNoise` starts it. STDDEV is a float in hexadecimal, so that
parent and child use the same number exactly; COUNT is the number of values. Both are public. The
values go to standard output as little-endian 64-bit integers and nowhere else; each process takes
its own entropy from the operating system.
"""

import sys
from collections.abc import Sequence

from privacy.randomness import exact_discrete_gaussian


def main(arguments: Sequence[str]) -> int:
    """Write the values to standard output; what ends in an exception is refused by the parent."""
    stddev, count = arguments
    for values in exact_discrete_gaussian(int(count), noise_stddev=float.fromhex(stddev)):
        sys.stdout.buffer.write(values.astype("<i8", copy=False).tobytes())
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
