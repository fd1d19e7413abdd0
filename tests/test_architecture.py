"""The rules of the source text that `make lint` (import-linter, ruff's banned names) cannot say."""

import re

from tests.processes import ROOT

PACKAGES = ("clustmix", "flows", "tasks", "privacy", "storage", "benchmarks")
PICKLES = r"\.to_pickle\b|\.read_pickle\b|\b__import__\(|\ballow_pickle\s*=(?!\s*False\b)"


def test_no_method_writes_or_reads_a_pickle():
    for package in PACKAGES:
        sources = sorted((ROOT / package).rglob("*.py"))
        assert sources
        for path in sources:
            assert not re.search(PICKLES, path.read_text(encoding="utf-8")), path
