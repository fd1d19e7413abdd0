"""The command ``clustmix audit``: attack a method, and hold what was measured against its claim."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import terminal
from flows.cli.options import EXIT_CODES, AsJson, argument, option
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from tasks.audit.findings import AuditResult
    from tasks.audit.whole_release import WholeRelease

app = typer.Typer()


@app.command(epilog=EXIT_CODES)
def audit(
    method: Annotated[
        str | None, argument("METHOD", "clustmix, naive_bayes, or noise for the noise path alone")
    ] = None,
    whole_release: Annotated[
        Path | None,
        option(
            "SITE.yaml",
            "attack what clustmix release makes of a generated table of this schema, with the "
            "method, epsilon and delta that stand there",
        ),
    ] = None,
    canaries: Annotated[int, option("N", "planted patients of a whole release")] = 20_000,
    runs: Annotated[int | None, option("N", "runs of each table (default: a few minutes)")] = None,
    confidence: Annotated[float, option("C", "confidence of all bounds together")] = 0.999,
    epsilon: Annotated[float, option("E", "epsilon to audit the method at")] = 1.0,
    delta: Annotated[float, option("D", "delta to audit the method at")] = 1e-6,
    output: Annotated[Path | None, option("FOLDER", "folder for the numbers and a drawing")] = None,
    as_json: AsJson = False,
) -> int:
    """Attack a method and bound epsilon from below.

    It runs many times on the worst pairs of neighbouring tables, and its output is attacked; or,
    with --whole-release, what clustmix release makes of a generated table. It can show a flaw and
    never the absence of one. No private table is read. Exit code 1 if a bound is above the claim.
    """
    result: AuditResult | WholeRelease
    from flows.cli.progress import Progress

    with Progress(quiet=as_json) as progress:
        if whole_release is not None and method is None:
            from flows.operations.audit_release import audit_whole_release

            result = audit_whole_release(
                whole_release, canaries=canaries, confidence=confidence, show=progress.begin
            )
        elif method is not None and whole_release is None:
            from tasks.audit import subjects
            from tasks.audit.pairs import neighbour_pairs

            subject = subjects.subject_of(method)
            with_canaries = subject.canary_codes is not None
            progress.expect(len(neighbour_pairs(subjects.AUDIT_DOMAIN)) + with_canaries + 1)
            result = subjects.audit(
                subject,
                epsilon=epsilon,
                delta=delta,
                runs=subject.runs if runs is None else runs,
                confidence=confidence,
                show=lambda text: progress.begin(text, 1.0),
            )
        else:
            raise ConfigurationError(
                "AUDIT_SUBJECT_INVALID", "expected either a METHOD or --whole-release SITE.yaml"
            )
    files = [str(path) for path in ([] if output is None else write_audit(result, output))]
    if as_json:
        terminal.answer({**result.to_dict(), "files": files}, as_json=True)
    else:
        _show(result)
        for file in files:
            terminal.facts({"File": terminal.Whole(file)})
    return result.exit_code


def _show(result: AuditResult | WholeRelease) -> None:
    """Write a result for people to standard output."""
    from tasks.audit.findings import LOWER_BOUND, AuditResult

    claim = result.claim
    mu = "" if claim.mu is None else f", mu {claim.mu:.4f}"
    claimed = f"epsilon {claim.epsilon:g} at delta {claim.delta:g}{mu}"
    power = ", ".join(f"{f:g} in {100 * share:.0f} %" for f, share in (result.power or {}).items())
    if isinstance(result, AuditResult):
        _show_runs(result, claimed, power)
    else:
        _show_whole_release(result, claimed, power)
    terminal.facts({"Verdict": f"{result.verdict}; the numbers are {LOWER_BOUND}"})


def _show_runs(result: AuditResult, claimed: str, power: str) -> None:
    terminal.facts(
        {
            "Audited": f"{result.method}, add or remove one patient, {result.runs:,} runs",
            "Claimed": claimed,
            "Measured": f"epsilon at least {result.audited_epsilon:.3f}, mu at least "
            f"{result.audited_mu:.4f}; confidence {100 * result.confidence:g} %",
        }
    )
    rows = [(f.pair, f"{f.mu:.4f}", f"{f.epsilon:.3f}", f.mu_attack) for f in result.pairs]
    if result.one_run is not None:
        one = result.one_run
        right = f"{one.correct} of {one.guesses} guesses about {one.canaries} patients right"
        rows.append(("one run", "", f"{one.epsilon:.3f}", right))
    terminal.table(rows, ("tables", ">mu", ">epsilon", "attack"))
    if power:
        told = f"a mu that is too large by a factor of {power} of audits of so many runs is "
        terminal.facts({"Power": told + "reported, by simulation"})


def _show_whole_release(result: WholeRelease, claimed: str, power: str) -> None:
    residual = result.residual
    terminal.facts(
        {
            "Audited": f"{result.method} of {result.dataset}: {result.patients:,} generated "
            f"patients, {result.measurement.canaries:,} canaries; the command took "
            f"{result.release_seconds:.0f} s",
            "Claimed": claimed,
            "Measured": f"epsilon at least {result.audited_epsilon:.3f}; each bound with a "
            f"confidence of {100 * result.confidence:g} %",
        }
    )
    rows = []
    for name, f in (("sealed", result.measurement), ("bundle", result.bundle)):
        loudest = f"{f.loudest_correct:,} of {f.loudest:,}"
        rows += [
            (name, f"{f.epsilon:.3f}", "Gaussian noise", f"{f.correct:,} of {f.canaries:,}"),
            ("", f"{f.epsilon_gdp:.3f}", "any mu-GDP mechanism", loudest),
            ("", f"{f.epsilon_any:.3f}", "any (epsilon, delta)-DP mechanism", loudest),
        ]
    terminal.table(rows, ("attacked", ">epsilon", "of what holds for", "guesses that are right"))
    terminal.facts(
        {
            "Noise": f"{residual.ratio:.4f} of what is stated, in {residual.n_values:,} values; "
            f"honest noise lies between {residual.lowest:.4f} and {residual.highest:.4f}",
            "Power": "an honest release is expected to show epsilon "
            f"{result.expected_epsilon:.2f}; guesses report a mu that is too large by a factor of "
            f"{power} of such audits; the noise reports one of {1.0 / residual.lowest:.3f}",
        }
    )


def write_audit(result: AuditResult | WholeRelease, folder: Path) -> list[Path]:
    """Write the numbers and the drawing; files of an earlier audit of a claim are replaced."""
    from tasks.reporting.audit_plot import draw_audits

    method = re.sub(r"[^a-z0-9_]+", "-", result.method.lower())
    name = f"{method}-epsilon-{result.claim.epsilon:.3g}"
    numbers, drawing = folder / f"{name}.json", folder / f"{name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    answer = result.to_dict()
    numbers.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    draw_audits([answer], drawing)
    return [numbers, drawing]
