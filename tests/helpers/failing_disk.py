"""A disk that is full, and a process that ends at one of its writes."""

import os
import stat
from contextlib import contextmanager
from unittest import mock

WRITES = ("mkdir", "open", "fsync", "rename", "replace", "unlink")


class Killed(BaseException):
    """The process ends here."""


def no_space(*_arguments, **_options):
    raise OSError(28, "No space left on device")


@contextmanager
def writes(end_at=None):
    """Count what touches the disk, and end the process at one of them."""
    counted = mock.Mock(n_calls=0)

    def counting(name):
        real = getattr(os, name)

        def call(*arguments, **options):
            counted.n_calls += 1
            if counted.n_calls == end_at:
                if name == "fsync" and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    # Half of what was written never came to the disk.
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                raise Killed
            return real(*arguments, **options)

        return call

    with mock.patch.multiple(os, **{name: counting(name) for name in WRITES}):
        yield counted
