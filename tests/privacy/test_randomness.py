import sys

import numpy as np
import opendp.mod
import psutil
import pytest
from scipy.special import ndtr
from scipy.stats import binom, chi2

import privacy.randomness
from privacy.errors import ClustMixError
from privacy.randomness import (
    OperatingSystemNoise,
    SeededNoise,
    exact_discrete_gaussian,
)
from tests.processes import python

DRAWS = 20_000
# The noise comes from the operating system and cannot be seeded. A test that accepts fails by
# chance with probability 1e-9; the tests that must reject have power above 1 - 1e-9, because 0.7
# and 1.3 times sigma change the variance by a factor 0.49 and 1.69, which is more than 50 and 69
# standard errors, sqrt(2 / DRAWS) = 0.01, from 1.
FALSE_ALARM = 1e-9


def variance_is_plausible(noise, *, noise_stddev):
    """Two-sided chi-square test of the variance around the known mean 0."""
    statistic = np.sum((noise / noise_stddev) ** 2)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=noise.size)
    return bool(low <= statistic <= high)


def shape_is_plausible(noise, *, noise_stddev):
    """Chi-square test of the counts in 20 bins of equal mass (the grid is fine against them)."""
    upper_tail = ndtr(-(noise + 0.5) / noise_stddev) + ndtr(-(noise - 0.5) / noise_stddev)
    counts = np.bincount(np.minimum((upper_tail / 2 * 20).astype(int), 19), minlength=20)
    expected = noise.size / 20
    statistic = np.sum((counts - expected) ** 2 / expected)
    return bool(statistic <= chi2.ppf(1 - FALSE_ALARM, df=19))


@pytest.fixture(params=["one process", "three processes"])
def real_noise(request, monkeypatch):
    """The production source, in this process and in children."""
    if request.param == "three processes":
        monkeypatch.setattr("privacy.randomness.PARALLEL_ABOVE", 10)
        monkeypatch.setattr("privacy.randomness._available_cores", lambda: 3)
    return OperatingSystemNoise()


@pytest.mark.parametrize("noise_stddev", [300.25, 2.0**28 / 0.2367])
def test_the_sampler_draws_the_stated_noise_and_no_other(noise_stddev, real_noise):
    # Among three processes the values do not divide.
    noise = real_noise.discrete_gaussian((40, DRAWS // 40), noise_stddev=noise_stddev)
    assert (noise.shape, noise.dtype) == ((40, DRAWS // 40), np.int64)
    noise = noise.ravel()
    assert variance_is_plausible(noise, noise_stddev=noise_stddev)
    assert shape_is_plausible(noise, noise_stddev=noise_stddev)
    for wrong in (0.7, 1.3):
        assert not variance_is_plausible(noise, noise_stddev=wrong * noise_stddev)
        assert not shape_is_plausible(noise, noise_stddev=wrong * noise_stddev)


def test_every_residue_is_as_likely_as_the_others():
    # All integers, not a coarser grid and not their absolute values: the low bits and the sign are
    # fair coins. Each count has a two-sided binomial test; the bias of these bits, and the
    # probability of 0, are below 1e-6 and far from what 20,000 draws could show.
    noise = OperatingSystemNoise().discrete_gaussian((DRAWS,), noise_stddev=1e6)
    low, high = binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS, 0.5)
    for bit in range(8):
        assert low <= np.sum(noise >> bit & 1) <= high
    assert low <= np.sum(noise > 0) <= high
    third_low, third_high = binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS, 1 / 3)
    for residue in range(3):
        assert third_low <= np.sum(noise % 3 == residue) <= third_high


def test_the_sampler_is_right_integer_by_integer(real_noise):
    # A coarse grid, where the discrete law is not a rounded normal: sigma = 0.8.
    noise = real_noise.discrete_gaussian((DRAWS,), noise_stddev=0.8)
    support = np.arange(-3, 4)
    weights = np.exp(-(np.arange(-30, 31) ** 2) / (2 * 0.8**2))
    expected = DRAWS * np.exp(-(support**2) / (2 * 0.8**2)) / weights.sum()
    counts = np.array([np.sum(noise == z) for z in support])
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic <= chi2.ppf(1 - FALSE_ALARM, df=7)


def test_draws_are_independent_and_never_repeat():
    source = OperatingSystemNoise()
    first = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    second = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    assert not np.array_equal(first, second)
    # Six standard errors of a correlation of independent values.
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(DRAWS)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 6 / np.sqrt(DRAWS)


def test_large_draws_are_made_in_pieces_without_a_seam(monkeypatch):
    monkeypatch.setattr("privacy.randomness._VALUES_AT_ONCE", 7)
    noise = OperatingSystemNoise().discrete_gaussian((4, 5), noise_stddev=1e12)
    assert noise.shape == (4, 5)
    assert len(np.unique(noise)) == 20
    sizes = [piece.size for piece in exact_discrete_gaussian(20, noise_stddev=60.0)]
    assert sizes == [7, 7, 6]
    assert list(exact_discrete_gaussian(0, noise_stddev=60.0)) == []


PARTS = 4


def parts_of_a_draw(monkeypatch):
    monkeypatch.setattr("privacy.randomness.PARALLEL_ABOVE", 10)
    monkeypatch.setattr("privacy.randomness._available_cores", lambda: PARTS)
    noise = OperatingSystemNoise().discrete_gaussian((PARTS * 5_000,), noise_stddev=1e15)
    return np.array_split(noise, PARTS)


def test_the_streams_of_child_processes_are_independent(monkeypatch):
    parts = parts_of_a_draw(monkeypatch)
    # Among 20,000 values of standard deviation 1e15 an equal pair has probability below 1e-7; a
    # seed that two children share, at any offset, would repeat thousands.
    assert len(np.unique(np.concatenate(parts))) == PARTS * 5_000
    assert len(np.unique(np.abs(np.concatenate(parts)))) == PARTS * 5_000
    for i in range(PARTS):
        for j in range(i):
            # Six standard errors of a correlation of independent values.
            assert abs(np.corrcoef(parts[i], parts[j])[0, 1]) < 6 / np.sqrt(5_000)


def test_small_draws_start_no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr("subprocess.Popen", refuse)
    assert OperatingSystemNoise().discrete_gaussian((50,), noise_stddev=60.0).shape == (50,)


def test_the_child_finds_this_package_from_any_directory(monkeypatch, tmp_path):
    # A package of the same name in the current directory must not stand in for this one.
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy" / "__init__.py").touch()
    (tmp_path / "privacy" / "noise_process.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    assert all(part.size == 5_000 for part in parts_of_a_draw(monkeypatch))


def test_arguments_of_the_child_are_public_and_exact():
    stddev = 2.0**28 / 0.2367
    command = privacy.randomness._noise_command(17, noise_stddev=stddev)
    assert command[:4] == [sys.executable, "-P", "-m", "privacy.noise_process"]
    assert float.fromhex(command[4]) == stddev
    assert command[5:] == ["17"]


def test_the_child_loads_little():
    code = "import sys, privacy.noise_process; print(*sys.modules)"
    found = python("-P", "-c", code, check=True, env=privacy.randomness._noise_environment())
    heavy = {"prefect", "dask", "distributed", "jax", "pandas", "scipy", "dp_accounting", "pyarrow"}
    assert not heavy & set(found.stdout.split())


def noise_processes():
    """Return the children of this process that draw noise, whatever became of them."""
    children = psutil.Process().children()
    return [child for child in children if "privacy.noise_process" in child.cmdline()]


# What a child may do wrong, as the program that stands in for it.
FAULTS = {
    "exits with an error": "sys.stdout.buffer.write(bytes(8 * n)); sys.exit(3)",
    "writes too little": "sys.stdout.buffer.write(bytes(8 * n - 1))",
    "writes nothing": "pass",
    "writes too much": "sys.stdout.buffer.write(bytes(8 * n + 1))",
    "never stops writing": "\nwhile True: sys.stdout.buffer.write(bytes(8 * n))",
    "is killed": "sys.stdout.buffer.write(bytes(8)); os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_child_that_fails_is_an_error(fault, monkeypatch):
    started = []
    real_command = privacy.randomness._noise_command

    def command(count, *, noise_stddev):
        started.append(count)
        # The second child is broken, the others are the real ones.
        if len(started) == 2:
            return [sys.executable, "-c", f"import os, sys; n = {count}; {fault}"]
        return real_command(count, noise_stddev=noise_stddev)

    monkeypatch.setattr("privacy.randomness._noise_command", command)
    with pytest.raises(
        ClustMixError,
        match="NOISE_PROCESS_FAILED: expected every noise process to write all its values, found "
        "a process that ended early or wrote another number of values; what was drawn is thrown",
    ):
        parts_of_a_draw(monkeypatch)
    assert len(started) == PARTS
    assert noise_processes() == []


def test_a_child_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(
        "privacy.randomness._noise_command", lambda *_, **__: ["/there/is/no/such/program"]
    )
    with pytest.raises(ClustMixError, match="found a process that could not be started or read"):
        parts_of_a_draw(monkeypatch)


@pytest.mark.parametrize(
    "arguments", [[], ["0x1p4"], ["300.0", "x"], ["nan", "5"], ["0x1p8", "5", "6"]]
)
def test_a_child_with_wrong_arguments_writes_no_value(arguments):
    command = ("-P", "-m", "privacy.noise_process", *arguments)
    done = python(*command, text=False, env=privacy.randomness._noise_environment())
    assert done.returncode != 0
    assert done.stdout == b""


def test_the_switch_of_the_library_is_left_as_it_was():
    before = set(opendp.mod.GLOBAL_FEATURES)
    OperatingSystemNoise().discrete_gaussian((1,), noise_stddev=50.0)
    assert before == opendp.mod.GLOBAL_FEATURES
    opendp.mod.enable_features("contrib")
    try:
        OperatingSystemNoise().discrete_gaussian((1,), noise_stddev=50.0)
        assert "contrib" in opendp.mod.GLOBAL_FEATURES
    finally:
        if "contrib" not in before:
            opendp.mod.disable_features("contrib")


def test_seeded_noise_is_tainted_and_can_be_repeated():
    first, second = SeededNoise(7), SeededNoise(7)
    noise = first.discrete_gaussian((DRAWS,), noise_stddev=300.0)
    assert np.array_equal(noise, second.discrete_gaussian((DRAWS,), noise_stddev=300.0))
    assert noise.dtype == np.int64
    assert variance_is_plausible(noise, noise_stddev=300.0)
    assert SeededNoise(7).tainted
    assert not OperatingSystemNoise().tainted
