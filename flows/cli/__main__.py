"""``python -m flows.cli`` is the command ``clustmix``."""

import sys

from flows.cli import main

if __name__ == "__main__":
    sys.exit(main())
