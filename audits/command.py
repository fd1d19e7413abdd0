"""The work of ``clustmix audit``: one audit, shown to a person or a program, and written."""

import json
import re
from functools import partial
from pathlib import Path

from audits.drawing import draw_audits
from audits.findings import LOWER_BOUND, AuditResult
from audits.generated_release import audit_whole_release
from audits.pairs import AUDIT_DOMAIN, neighbour_pairs
from audits.subjects import audit, subject_of
from audits.whole_release import WholeRelease
from flows.cli import terminal
from flows.cli.progress import Progress
from privacy.errors import ConfigurationError


def run(
    method: str | None,
    site: Path | None,
    *,
    canaries: int,
    runs: int | None,
    confidence: float,
    epsilon: float,
    delta: float,
    output: Path | None,
) -> int:
    """Audit a method, or a whole release of a site file; return the exit code of the command.

    One of the two is named (ConfigurationError).
    """
    result: AuditResult | WholeRelease
    with Progress() as progress:
        if site is not None and method is None:
            result = audit_whole_release(
                site, canaries=canaries, confidence=confidence, show=progress.begin
            )
        elif method is not None and site is None:
            subject = subject_of(method)
            progress.expect(len(neighbour_pairs(AUDIT_DOMAIN)) + 1)
            result = audit(
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
    files = [] if output is None else write(result, output)
    answer = {**result.to_dict(), "files": [str(path) for path in files]}
    terminal.answer(
        answer,
        partial(_show, result, verdict=answer["verdict"]),
        *({"File": terminal.Whole(path)} for path in files),
    )
    return 0 if result.within_claim else 1


def write(result: AuditResult | WholeRelease, folder: Path) -> list[Path]:
    """Write the numbers and the drawing; files of an earlier audit of a claim are replaced."""
    method = re.sub(r"[^a-z0-9_]+", "-", result.method.lower())
    name = f"{method}-epsilon-{result.claim.epsilon:.3g}"
    numbers, drawing = folder / f"{name}.json", folder / f"{name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    answer = result.to_dict()
    numbers.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    draw_audits([answer], drawing)
    return [numbers, drawing]


def _show(result: AuditResult | WholeRelease, *, verdict: str) -> None:
    claim = result.claim
    terminal.facts(
        {
            "Claimed": f"epsilon {claim.epsilon:g} at delta {claim.delta:g}, mu {claim.mu:.4f}",
            "Measured": f"epsilon at least {result.audited_epsilon:.3f}; confidence "
            f"{100 * result.confidence:g} %",
        }
    )
    if isinstance(result, AuditResult):
        _show_runs(result)
    else:
        _show_release(result)
    terminal.facts({"Verdict": f"{verdict}; the numbers are {LOWER_BOUND}"})


def _show_runs(result: AuditResult) -> None:
    rows = [(f.pair, f"{f.mu:.4f}", f"{f.epsilon:.3f}", f.mu_attack) for f in result.pairs]
    terminal.table(rows, ("tables", ">mu", ">epsilon", "attack"))
    power = ", ".join(f"{f:g} in {100 * rate:.0f} %" for f, rate in result.power.items())
    terminal.facts(
        {
            "Audited": f"{result.method}, add or remove one patient, {result.runs:,} runs",
            "Power": f"a mu that is too large by a factor of {power} of such audits is reported",
        }
    )


def _show_release(result: WholeRelease) -> None:
    rows = []
    for name, f in (("sealed", result.measurement), ("bundle", result.bundle)):
        loudest = f"{f.loudest_correct:,} of {f.loudest:,}"
        rows += [
            (name, f"{f.epsilon:.3f}", "Gaussian noise", f"{f.correct:,} of {f.canaries:,}"),
            ("", f"{f.epsilon_gdp:.3f}", "any mu-GDP mechanism", loudest),
            ("", f"{f.epsilon_any:.3f}", "any (epsilon, delta)-DP mechanism", loudest),
        ]
    terminal.table(rows, ("attacked", ">epsilon", "holds for", "right guesses"))
    noise = result.residual
    terminal.facts(
        {
            "Audited": f"{result.method} of {result.dataset}: {result.patients:,} generated "
            f"patients, {result.measurement.canaries:,} canaries; the command took "
            f"{result.release_seconds:.0f} s",
            "Noise": f"{noise.ratio:.4f} of the stated, in {noise.n_values:,} values; honest noise "
            f"lies between {noise.lowest:.4f} and {noise.highest:.4f}",
            "Power": "an honest release is expected to show epsilon "
            f"{result.expected_epsilon:.2f}; the noise reports a mu that is too large by a factor "
            f"of {1.0 / noise.lowest:.3f}",
        }
    )
