"""The guarantee of a release in plain words, one wording for the terminal, the card, the page.

The words are the definition of differential privacy read aloud. The reading as a test is exact
for Gaussian differential privacy: a test whether one patient is in the data that is wrong about
absent patients at rate alpha is right about present ones at rate at most
``Phi(Phi^-1(alpha) + mu)`` (Dong, Roth and Su 2022, Definition 2.6 and equation 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import NormalDist
from typing import Self

from privacy.parameters import Adjacency, Analysis
from storage.releases.manifest import Manifest

FALSE_ALARM_RATE = 0.05
"""False alarms of the test that the statement describes."""

PAPER_MARKER = (
    "epsilon claimed by the paper, not proven: the published analysis does not cover every step "
    "that reads patient data. Do not rely on it and do not release this table."
)
TAINTED_MARKER = (
    "Made with seeded noise, for tests only: whoever knows the seed can remove the noise. "
    "This table has no privacy guarantee and must not leave the place where it was made."
)

PROTECTS = (
    "Learning from the release whether a given patient was in the data, beyond the stated bound.",
    "Learning anything that only that patient's records could tell, beyond the same bound, "
    "whatever else the reader knows and whatever they compute from the release, now or later.",
    "Finding a patient's record among the rows: each row is drawn from noisy statistics, and "
    "none is a record of anybody.",
)
DOES_NOT_PROTECT = (
    "Facts about groups: if patients with a property share a risk, the release shows it, and a "
    "reader may apply it to anybody with that property.",
    "Several people together, such as the members of a family: the bound weakens with each of "
    "them.",
    "Other releases from the same patients: their losses add up, here and at other institutions.",
    "Whether the table changed between two releases: an unchanged one is not measured again unless "
    "new noise is asked for.",
    "Data outside the release: the hospital systems, their backups, and who may read them.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The public facts that a guarantee is made of.

    Parameters
    ----------
    epsilon, delta
        What the accountant computed under `adjacency`.
    replace_one_epsilon
        The same under replace-one neighbours.
    mu
        Total of Gaussian differential privacy under `adjacency`.
    adjacency
        Which tables are neighbours.
    privacy_unit
        What one neighbour adds or removes, in words or as a column name.
    max_rows_per_patient
        Rows of one patient that have any influence.
    analysis
        Whether a proof covers the method as it ran.
    tainted
        Whether a noise source for tests was used.
    """

    epsilon: float
    delta: float
    replace_one_epsilon: float
    mu: float
    adjacency: Adjacency
    privacy_unit: str
    max_rows_per_patient: int
    analysis: Analysis
    tainted: bool

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the claim that a manifest makes."""
        return cls(
            epsilon=manifest.epsilon,
            delta=manifest.delta,
            replace_one_epsilon=manifest.replace_one_epsilon,
            mu=manifest.mu,
            adjacency=Adjacency(manifest.adjacency),
            privacy_unit=manifest.privacy_unit,
            max_rows_per_patient=manifest.max_rows_per_patient,
            analysis=Analysis(manifest.analysis),
            tainted=manifest.tainted,
        )

    @property
    def proven(self) -> bool:
        """Whether the numbers may be relied upon."""
        return self.analysis is Analysis.PROVEN and not self.tainted

    @property
    def markers(self) -> tuple[str, ...]:
        """Warnings that stand above everything else."""
        published = (PAPER_MARKER,) if self.analysis is Analysis.PAPER else ()
        return (*published, *((TAINTED_MARKER,) if self.tainted else ()))

    @property
    def present_per_hundred(self) -> int:
        """Of 100 present patients, how many the best test recognises at most; rounded up."""
        normal = NormalDist()
        rate = normal.cdf(normal.inv_cdf(FALSE_ALARM_RATE) + self.mu)
        return min(100, math.ceil(100 * rate))


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a positive number with the given significant digits, never smaller than its repr."""
    # repr, as 0.1 is meant to stay 0.1 and not to become the next step above its binary form.
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    # Exact integer arithmetic: a context of finite precision might round down first.
    steps = math.ceil(Fraction(exact) / Fraction(step))
    rounded = (steps * step).normalize()
    if -5 <= rounded.adjusted() < digits + 3:
        return f"{rounded:f}"
    mantissa = (rounded.scaleb(-rounded.adjusted())).normalize()
    return f"{mantissa:f}e{rounded.adjusted()}"


def headline(claim: Claim) -> str:
    """Return one line: what is guaranteed, or that nothing is."""
    if claim.tainted:
        return "No guarantee: this table was made for tests."
    if claim.analysis is Analysis.PAPER:
        return "No proven guarantee: the numbers below are a claim."
    return "What this release can tell about any one patient is bounded, by proof."


def definition(claim: Claim) -> str:
    """Return the definition of the guarantee with its numbers."""
    change = (
        "Adding or removing all records of one patient"
        if claim.adjacency is Adjacency.ADD_REMOVE
        else "Replacing all records of one patient by those of another"
    )
    # Above 700 the factor is no longer a float, and no longer a bound of any use.
    bound = (
        f"by at most a factor of {rounded_up(math.exp(claim.epsilon), 3)}"
        if claim.epsilon < 700
        else "with no bound on the factor that means anything"
    )
    verb = "changes" if claim.proven else "is claimed to change"
    return (
        f"{change} {verb} the probability of any outcome of this release {bound} "
        f"(epsilon = {rounded_up(claim.epsilon)}), apart from a probability of at most "
        f"delta = {rounded_up(claim.delta)}."
    )


def as_a_test(claim: Claim) -> str | None:
    """Return what the guarantee means for somebody who tests for one patient, if it is proven."""
    if not claim.proven:
        return None
    false_alarms = round(100 * FALSE_ALARM_RATE)
    if claim.adjacency is Adjacency.ADD_REMOVE:
        who = "whether one patient is in the data"
        wrong, right = "absent", "present"
    else:
        who = "which of two sets of records one patient has"
        wrong, right = "first-kind", "second-kind"
    return (
        f"Somebody who knows every other record and tests {who}, allowing {false_alarms} false "
        f"alarms for 100 {wrong} patients, recognises at most {claim.present_per_hundred} of 100 "
        f"{right} ones. Guessing would recognise {false_alarms}."
    )


def unit_sentence(claim: Claim) -> str:
    """Return whom the guarantee protects."""
    rows = claim.max_rows_per_patient
    if rows == 1:
        used = "one record per patient has any influence"
    else:
        used = f"at most {rows} records of a patient have any influence"
    return f"The unit of protection is {claim.privacy_unit}; {used}."


def replace_one_sentence(claim: Claim) -> str:
    """Return the value for the other usual neighbours, beside the main one."""
    claimed = "" if claim.proven else "is claimed "
    return (
        "For neighbours in which one patient is replaced by another (replace-one), epsilon = "
        f"{rounded_up(claim.replace_one_epsilon)} {claimed}at the same delta."
    )


def guarantee_statement(claim: Claim) -> str:
    """Return the whole statement as one paragraph of plain text.

    Parameters
    ----------
    claim
        The public facts.

    Returns
    -------
    str
        Markers first, if there are any, then definition, test, unit, replace-one value.
    """
    markers = [f"WARNING: {marker}" for marker in claim.markers]
    sentences = [
        definition(claim),
        as_a_test(claim),
        unit_sentence(claim),
        replace_one_sentence(claim),
    ]
    return " ".join([*markers, *(sentence for sentence in sentences if sentence is not None)])
