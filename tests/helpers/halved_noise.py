"""``clustmix`` with half of the noise that it states: a planted flaw for the audits."""

import sys

from privacy.randomness import OperatingSystemNoise

_stated = OperatingSystemNoise.discrete_gaussian


def _half(self, shape, *, noise_stddev):
    return _stated(self, shape, noise_stddev=noise_stddev / 2)


if __name__ == "__main__":
    OperatingSystemNoise.discrete_gaussian = _half
    from flows.cli import main

    sys.exit(main())
