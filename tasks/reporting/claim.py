"""The guarantee of a release in plain words, one wording for the terminal, the card, the page.

The words are the definition of differential privacy. The reading as a test is exact for Gaussian
differential privacy: a test for one patient's presence with false alarms at rate alpha detects it
at rate at most ``Phi(Phi^-1(alpha) + mu)`` (Dong, Roth and Su 2022, Definition 2.6, Eq. 6).
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import NormalDist
from typing import Protocol

from privacy.parameters import Adjacency

FALSE_ALARMS = 5
"""False alarms per 100 absent patients in the test of the statement."""

TAINTED_MARKER = (
    "Made with seeded noise, for tests only: whoever knows the seed can remove the noise. "
    "This table has no privacy guarantee and must not leave the place where it was made."
)


class _Numbers(Protocol):
    """Numbers of a guarantee, as of a manifest or a fitted model."""

    @property
    def tainted(self) -> bool: ...
    @property
    def mu(self) -> float: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def replace_one_epsilon(self) -> float: ...
    @property
    def adjacency(self) -> str: ...
    @property
    def privacy_unit(self) -> str: ...
    @property
    def max_rows_per_patient(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a manifest, in words."""

    manifest: _Numbers

    @property
    def proven(self) -> bool:
        """True if the numbers may be relied upon."""
        return not self.manifest.tainted

    @property
    def adds_or_removes(self) -> bool:
        """True for add-remove neighbours, false for replace-one."""
        return self.manifest.adjacency == Adjacency.ADD_REMOVE

    @property
    def markers(self) -> tuple[str, ...]:
        """Warnings that stand above everything else."""
        return (TAINTED_MARKER,) * self.manifest.tainted

    @property
    def present_per_hundred(self) -> int:
        """Most present patients of 100 that the best test recognises, rounded up."""
        return self.recognised(FALSE_ALARMS)

    def recognised(self, false_alarms: float, *, patients: int = 1) -> int:
        """Return the same at ``false_alarms`` of 100, for a group that is present or absent.

        The loss of a group is mu times its size (Dong, Roth and Su 2022, Theorem 2.14).
        """
        normal = NormalDist()
        rate = normal.cdf(normal.inv_cdf(false_alarms / 100) + patients * self.manifest.mu)
        return min(100, math.ceil(100 * rate))

    def belief(self, prior: float, *, chance: float, presence: bool) -> float:
        """Return the belief that a true hypothesis exceeds with a probability of at most `chance`.

        The hypothesis is the `presence` of a patient in the data, or a fact about the records of a
        patient who is known to be in it: these are exchanged for others, which is twice the loss
        of leaving them out (`privacy.gaussian.adjacency_factor`). See `privacy_loss_bound`.
        """
        from privacy.gaussian import privacy_loss_bound  # scipy is slow to import

        times = 1 if presence or not self.adds_or_removes else 2
        loss = privacy_loss_bound(chance=chance, mu=times * self.manifest.mu)
        return 1.0 / (1.0 + (1.0 - prior) / prior * math.exp(-loss))

    @property
    def headline(self) -> str:
        """The guarantee in one line, or its absence."""
        if self.manifest.tainted:
            return "No guarantee: this table was made for tests."
        return (
            "The information that this release reveals about any one patient is bounded, by proof."
        )

    @property
    def definition(self) -> str:
        """The definition of the guarantee with its numbers."""
        change = (
            "Adding or removing all records of one patient"
            if self.adds_or_removes
            else "Replacing all records of one patient by those of another"
        )
        epsilon, delta = self.manifest.epsilon, self.manifest.delta
        # Above 700 the factor is no float, and no useful bound.
        bound = (
            f"by at most a factor of {rounded_up(math.exp(epsilon), 3)}"
            if epsilon < 700
            else "with no bound on the factor that means anything"
        )
        return (
            f"{change} {'changes' if self.proven else 'is claimed to change'} the probability of "
            f"any outcome of this release {bound} (epsilon = {rounded_up(epsilon)}), plus "
            f"delta = {rounded_up(delta)}."
        )

    @property
    def as_a_test(self) -> str | None:
        """The guarantee as a test for one patient, if it is proven."""
        if not self.proven:
            return None
        who, wrong, right = (
            ("whether one patient is in the data", "absent", "present")
            if self.adds_or_removes
            else ("which of two sets of records one patient has", "first-kind", "second-kind")
        )
        return (
            f"Somebody who knows every other record and tests {who}, allowing {FALSE_ALARMS} false "
            f"alarms for 100 {wrong} patients, recognises at most {self.present_per_hundred} of "
            f"100 {right} ones. Guessing would recognise {FALSE_ALARMS}."
        )

    @property
    def unit(self) -> str:
        """The unit of protection."""
        rows = self.manifest.max_rows_per_patient
        if rows == 1:
            used = "one record per patient has any influence"
        else:
            used = f"at most {rows} records of a patient have any influence"
        return f"The unit of protection is {self.manifest.privacy_unit}; {used}."

    @property
    def replace_one(self) -> str:
        """Epsilon for replace-one neighbours."""
        return (
            "For neighbours in which one patient is replaced by another (replace-one), epsilon = "
            f"{rounded_up(self.manifest.replace_one_epsilon)} "
            f"{'' if self.proven else 'is claimed '}at the same delta."
        )

    @property
    def statement(self) -> str:
        """The whole statement as one paragraph of plain text, markers first."""
        markers = [f"WARNING: {marker}" for marker in self.markers]
        words = (self.definition, self.as_a_test, self.unit, self.replace_one)
        return " ".join([*markers, *(sentence for sentence in words if sentence is not None)])


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a positive number rounded up to the given significant digits."""
    # repr, so that 0.1 stays 0.1 instead of the next step above its binary form.
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    # Exact integer arithmetic, as a context of finite precision might round down.
    steps = math.ceil(Fraction(exact) / Fraction(step))
    rounded = (steps * step).normalize()
    if -5 <= rounded.adjusted() < digits + 3:
        return f"{rounded:f}"
    mantissa = (rounded.scaleb(-rounded.adjusted())).normalize()
    return f"{mantissa:f}e{rounded.adjusted()}"
