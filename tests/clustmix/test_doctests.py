"""What the docstrings of the front door show is what happens."""

import doctest
import inspect

import pytest

import clustmix

CLASSES = [name for name in clustmix.__all__ if inspect.isclass(getattr(clustmix, name))]
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", [*CLASSES, "clustmix"])
def test_every_public_class_has_an_example_that_runs(name):
    documented = getattr(clustmix, name, clustmix)
    examples = doctest.DocTestParser().get_doctest(documented.__doc__, {}, name, None, 0)
    assert examples.examples
    found = []
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(examples, out=found.append)
    assert not found, "".join(found)
