"""The command ``clustmix audit``: attack a method, and hold what was measured against its claim."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli import terminal
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from tasks.audit.findings import AuditResult
    from tasks.audit.whole_release import GuessFinding, WholeRelease

DEFAULT_CONFIDENCE = 0.999
DEFAULT_EPSILON = 1.0
DEFAULT_DELTA = 1e-6
DEFAULT_CANARIES = 20_000


def audit_command(options: argparse.Namespace) -> int:
    """Audit one method.

    Parameters
    ----------
    options
        ``method`` or ``whole_release`` (the other is None), ``runs`` (None: the default of the
        method), ``canaries``, ``confidence``, ``epsilon``, ``delta``, ``output`` (a folder or
        None) and ``json``.

    Returns
    -------
    int
        0 if no bound is above the claim, 1 otherwise.
    """
    progress = terminal.Progress(quiet=options.json)
    if (options.method is None) == (options.whole_release is None):
        raise ConfigurationError(
            "AUDIT_SUBJECT_INVALID", "expected either a METHOD or --whole-release SITE.yaml"
        )
    if options.whole_release is not None:
        return _whole_release(options, progress)
    result = run_audit(
        options.method,
        epsilon=options.epsilon,
        delta=options.delta,
        runs=options.runs,
        confidence=options.confidence,
        progress=None if options.json else progress,
    )
    files = [] if options.output is None else write_audit(result, options.output)
    if options.json:
        terminal.print_json({**result.to_dict(), "files": [str(path) for path in files]})
    else:
        show_audit(result)
        _show_files(files)
    return result.exit_code


def _whole_release(options: argparse.Namespace, progress: terminal.Progress) -> int:
    """Audit a whole release of a generated table."""
    from flows.operations.audit_release import audit_whole_release

    result = audit_whole_release(
        options.whole_release,
        canaries=options.canaries,
        confidence=options.confidence,
        show=(lambda text: None) if options.json else progress.waiting,
    )
    files = [] if options.output is None else write_audit(result, options.output)
    if options.json:
        terminal.print_json({**result.to_dict(), "files": [str(path) for path in files]})
    else:
        _show_whole_release(result)
        _show_files(files)
    return result.exit_code


def _show_files(files: list[Path]) -> None:
    for path in files:
        terminal.line(f"{'File:':<12}{path}")


def run_audit(
    method: str,
    *,
    epsilon: float = DEFAULT_EPSILON,
    delta: float = DEFAULT_DELTA,
    runs: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    progress: terminal.Progress | None = None,
) -> AuditResult:
    """Audit a method on its worst-case tables.

    Parameters
    ----------
    method
        A proven method of the registry, or ``noise`` for the path of one count.
    epsilon, delta
        Target that the noise is calibrated to.
    runs
        Runs of each table of each pair; None takes the default of the method.
    confidence
        Probability with which all bounds hold together.
    progress
        Shown what is going on.

    Raises
    ------
    ConfigurationError
        If the method is unknown or a number is outside its range.

    Privacy
    -------
    Reads no private table and spends no budget.
    """
    # Imported here: the methods load slowly, and help does not need them.
    from tasks.audit.subjects import audit, subject_of

    subject = subject_of(method)
    return audit(
        subject,
        epsilon=epsilon,
        delta=delta,
        runs=subject.runs if runs is None else runs,
        confidence=confidence,
        show=(lambda text: None) if progress is None else progress.waiting,
    )


def show_audit(result: AuditResult) -> None:
    """Write a result for people to standard output."""
    from tasks.audit.findings import LOWER_BOUND

    claim = result.claim
    terminal.paragraph(
        "Audited", f"{result.method}, add or remove one patient, {result.runs:,} runs"
    )
    terminal.paragraph(
        "Claimed",
        f"epsilon {claim.epsilon:g} at delta {claim.delta:g}"
        + ("" if claim.mu is None else f", mu {claim.mu:.4f}"),
    )
    terminal.paragraph(
        "Measured",
        f"epsilon at least {result.audited_epsilon:.3f}, mu at least {result.audited_mu:.4f}; "
        f"confidence {100 * result.confidence:g} %",
    )
    width = max(len(finding.pair) for finding in result.pairs)
    for finding in result.pairs:
        terminal.line(
            f"  {finding.pair:<{width}}  mu {finding.mu:6.4f}  epsilon {finding.epsilon:6.3f}"
            f"  {finding.mu_attack}"
        )
    if result.one_run is not None:
        one = result.one_run
        terminal.line(
            f"  {'one run':<{width}}             epsilon {one.epsilon:6.3f}"
            f"  {one.correct} of {one.guesses} guesses about {one.canaries} patients right"
        )
    if result.power is not None:
        shares = ", ".join(f"{f:g} in {100 * p:.0f} %" for f, p in result.power.items())
        terminal.paragraph(
            "Power",
            f"a mu that is too large by a factor of {shares} of audits of so many runs is "
            "reported, by simulation",
        )
    terminal.paragraph("Verdict", f"{result.verdict}; the numbers are {LOWER_BOUND}")


def write_audit(result: AuditResult | WholeRelease, folder: Path) -> list[Path]:
    """Write the numbers and the drawing of a result; return the files.

    Parameters
    ----------
    result
        What an audit found.
    folder
        Made if it is not there. Files of an earlier audit of the same claim are replaced.
    """
    from tasks.reporting.audit_plot import draw_audits

    method = re.sub(r"[^a-z0-9_]+", "-", result.method.lower())
    name = f"{method}-epsilon-{result.claim.epsilon:.3g}"
    numbers, drawing = folder / f"{name}.json", folder / f"{name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    answer = result.to_dict()
    numbers.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    draw_audits([answer], drawing)
    return [numbers, drawing]


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of all audits of a folder, in the order of their names.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ConfigurationError(
            "NO_AUDITS", f"expected results of audits in {folder}, found none; run make audit"
        )
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "method",
        nargs="?",
        metavar="METHOD",
        help="clustmix, naive_bayes, or noise for the noise path alone",
    )
    parser.add_argument(
        "--whole-release",
        type=Path,
        metavar="SITE.yaml",
        help="attack the release that clustmix release makes of a generated table of this schema, "
        "with the method, epsilon and delta that stand there; no table is read",
    )
    parser.add_argument(
        "--canaries",
        type=int,
        default=DEFAULT_CANARIES,
        metavar="N",
        help=f"planted patients of a whole release (default {DEFAULT_CANARIES:,})",
    )
    parser.add_argument(
        "--runs", type=int, metavar="N", help="runs of each table (default: a few minutes)"
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=DEFAULT_CONFIDENCE,
        metavar="C",
        help=f"confidence of all bounds together (default {DEFAULT_CONFIDENCE:g})",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=DEFAULT_EPSILON,
        metavar="E",
        help=f"epsilon to audit the method at (default {DEFAULT_EPSILON:g})",
    )
    parser.add_argument(
        "--delta",
        type=float,
        default=DEFAULT_DELTA,
        metavar="D",
        help=f"delta to audit the method at (default {DEFAULT_DELTA:g})",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder for the numbers and a drawing"
    )


def _show_whole_release(result: WholeRelease) -> None:
    """Write a result for people to standard output."""
    from tasks.audit.findings import LOWER_BOUND

    claim, residual = result.claim, result.residual
    terminal.paragraph(
        "Audited",
        f"{result.method} of {result.dataset}: {result.patients:,} generated patients, "
        f"{result.measurement.canaries:,} canaries; the command took "
        f"{result.release_seconds:.0f} s",
    )
    terminal.paragraph(
        "Claimed", f"epsilon {claim.epsilon:g} at delta {claim.delta:g}, mu {claim.mu:.4f}"
    )
    terminal.paragraph(
        "Measured",
        f"epsilon at least {result.audited_epsilon:.3f}; each bound with a confidence of "
        f"{100 * result.confidence:g} %",
    )
    for name, finding in (("sealed", result.measurement), ("bundle", result.bundle)):
        _show_guesses(name, finding)
    terminal.paragraph(
        "Noise",
        f"{residual.ratio:.4f} of what is stated, in {residual.n_values:,} values; honest noise "
        f"lies between {residual.lowest:.4f} and {residual.highest:.4f}",
    )
    found = ", ".join(f"{f:g} in {100 * p:.0f} %" for f, p in result.power.items())
    terminal.paragraph(
        "Power",
        f"an honest release is expected to show epsilon {result.expected_epsilon:.2f}; guesses "
        f"report a mu that is too large by a factor of {found} of such audits; the noise reports "
        f"one of {1.0 / residual.lowest:.3f}",
    )
    terminal.paragraph("Verdict", f"{result.verdict}; the numbers are {LOWER_BOUND}")


def _show_guesses(name: str, finding: GuessFinding) -> None:
    terminal.line(
        f"  {name:<9} epsilon {finding.epsilon:6.3f}  Gaussian noise: {finding.correct:,} of "
        f"{finding.canaries:,} guesses right"
    )
    terminal.line(
        f"  {'':<9} epsilon {finding.epsilon_gdp:6.3f}  any mu-GDP mechanism: "
        f"{finding.loudest_correct:,} of {finding.loudest:,}"
    )
    terminal.line(
        f"  {'':<9} epsilon {finding.epsilon_any:6.3f}  any (epsilon, delta)-DP mechanism: the same"
    )
