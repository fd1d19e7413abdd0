import doctest
import inspect
import re

import pytest

import clustmix
from tests.processes import ROOT, python

EXAMPLES = ROOT / "examples"
SHOWN = {
    "table": r"real .*intensive care: 5\d%.*\nsynthetic .*\n\nAdding or removing .*Nothing was ch",
    "images": r"bar across:\n(.*\n){8}mean of .*bar down:\n(.*\n){8}Guarantee\(epsilon=(4|3.9)",
    "histories": r"real +130 and 100\n  synthetic +1[23]\d and (9|10)\d\n(.*\n)+.*labs; at most 9",
    "items": r"real +with tea 8\d%.*\n  synthetic +with tea [78]\d%.*\n.*asked for: 1 yes\n",
    "accountant": r"label_counts: Gaussian.*\n(.*\n)+(Charged to cohort .*\n){2}BUDGET_EXCEEDED",
    "conclusions": r"January +odds ratio .*\nboth +odds ratio .*\nJanuary +mean age .* interval ",
    "bundle": r"made-up/r-\d{8}-\w{8}, naive_bayes, signed.*\n(.*\n)+300 synthetic rows:\n",
}


@pytest.mark.integration
# `announce` is a program of senders: tests/storage/test_ready_files.py.
@pytest.mark.parametrize("name", sorted({p.stem for p in EXAMPLES.glob("*.py")} - {"announce"}))
def test_every_example_runs(name, tmp_path, request):
    arguments = []
    if name == "bundle":
        published = request.getfixturevalue("published")
        arguments = [published / "bundle", published / "pipeline.pub"]
    done = python("-W", "error", EXAMPLES / f"{name}.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(SHOWN[name], done.stdout), done.stdout
    assert not list(tmp_path.iterdir())


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
