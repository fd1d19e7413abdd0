"""Privacy events: a public record of what a mechanism did, from which any accountant can work.

An event holds no data and no result. A release lists its events in the manifest, so that a reader
can compute the guarantee again without the data and without this software.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency, ProtectedUnit

MIN_DISCRETE_NOISE_STDDEV = 50.0
"""Least standard deviation of discrete Gaussian noise, in grid units.

Far above the smoothing width of `privacy.accountants.gaussian`, so that the grid costs less than
one part in 300 of ``mu``; a finer grid is free.
"""

MAX_NOISE_STDDEV = 2.0**55
"""Largest standard deviation in grid units: 64 of them are still inside a 64-bit integer."""

MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 0.01, 1e6
"""Range of the noise multiplier of a sampled draw, in which its accountants were checked."""

MIN_SELECTION_EPSILON, MAX_SELECTION_EPSILON = 1e-9, 100.0
"""Range of epsilon of one private selection, in nats."""

MAX_REPETITIONS = 10**12
"""Largest number of times that a draw happens inside one event."""

_LEAST, _LARGEST = 1e-100, 1e100
"""Range in which squares and their ratio neither overflow nor vanish."""


def event_invalid(message: str) -> ConfigurationError:
    """Return the error for what is no event."""
    return ConfigurationError("EVENT_INVALID", message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


def shown(value: object) -> str:
    """Return a value as an error may quote it: repr has limits for huge and deep values."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "an integer beyond 64 bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:60])
    return f"a {type(value).__name__}"


def _check_draw(event: Any, size: str = "n_values") -> None:
    """Check the fields that every draw has, the one that counts its values among them."""
    if not isinstance(event.statistic, str) or not event.statistic:
        raise event_invalid(f"expected the name of a statistic, found {shown(event.statistic)}")
    if not _is_count(getattr(event, size)):
        raise event_invalid(
            f"expected {size} to be an integer from 1, found {shown(getattr(event, size))}"
        )
    if not isinstance(event.adjacency, Adjacency):
        raise event_invalid(f"expected an Adjacency, found {shown(event.adjacency)}")
    if not isinstance(event.unit, ProtectedUnit):
        raise event_invalid(f"expected a ProtectedUnit, found {shown(event.unit)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """One draw of the Gaussian mechanism with continuous noise.

    The statistic has a public name and at least one value. `l2_sensitivity` is its largest change
    between neighbours, in the Euclidean norm, from 1e-100 to 1e100 and at most 1e100 times the
    noise; `noise_stddev` is the standard deviation of each coordinate's noise, in the same unit.
    Adjacency and unit are the neighbours for which it was proven, and what they differ in. A field
    outside its range or of another type is a ConfigurationError.
    """

    statistic: str
    l2_sensitivity: float
    noise_stddev: float
    n_values: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: ProtectedUnit = ProtectedUnit.PATIENT

    def __post_init__(self) -> None:
        _check_draw(self)
        for name in ("l2_sensitivity", "noise_stddev"):
            value = getattr(self, name)
            if not (_is_number(value) and _LEAST <= value <= _LARGEST):
                raise event_invalid(
                    f"expected {name} to be a number from 1e-100 to 1e100, found {shown(value)}"
                )
        if self.l2_sensitivity / self.noise_stddev > _LARGEST:
            raise event_invalid(
                "expected a sensitivity of at most 1e100 times the noise, found more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianEvent(GaussianEvent):
    """One draw of the discrete Gaussian on the integers, added to each coordinate.

    Same fields as `GaussianEvent`, in integer grid units. ``noise_stddev`` is the parameter sigma
    of the weights ``exp(-z**2 / (2 sigma**2))``, from `MIN_DISCRETE_NOISE_STDDEV` to
    `MAX_NOISE_STDDEV`.
    """

    def __post_init__(self) -> None:
        # A zero-argument super() does not work in a slotted dataclass, which is a new class.
        GaussianEvent.__post_init__(self)
        if not MIN_DISCRETE_NOISE_STDDEV <= self.noise_stddev <= MAX_NOISE_STDDEV:
            raise event_invalid(
                f"expected noise_stddev from {MIN_DISCRETE_NOISE_STDDEV} to {MAX_NOISE_STDDEV} "
                f"grid units, found {self.noise_stddev!r}; change the scale of the grid"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanismEvent:
    """One private selection: the index of one of several public candidates, and nothing else.

    Candidate ``j`` is chosen with probability proportional to ``exp(epsilon u_j / (2 D))``, where
    the score ``u_j`` of each candidate changes by at most ``D`` between neighbours. Such a draw is
    (epsilon, 0)-DP and of range epsilon, see `privacy.accountants.bounded_range`; for a draw of
    which only the first is known there is no event. Epsilon is in nats, from
    `MIN_SELECTION_EPSILON` to `MAX_SELECTION_EPSILON`; the other fields and errors are those of
    `GaussianEvent`.
    """

    statistic: str
    epsilon: float
    n_candidates: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: ProtectedUnit = ProtectedUnit.PATIENT

    def __post_init__(self) -> None:
        _check_draw(self, "n_candidates")
        if not (
            _is_number(self.epsilon)
            and MIN_SELECTION_EPSILON <= self.epsilon <= MAX_SELECTION_EPSILON
        ):
            raise event_invalid(
                f"expected epsilon of a selection to be a number from {MIN_SELECTION_EPSILON} to "
                f"{MAX_SELECTION_EPSILON}, found {shown(self.epsilon)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampledGaussianEvent:
    """One draw of the Gaussian mechanism on a Poisson sample of the patients.

    Each patient is in the sample with the stated probability, independently of all others and by
    coins that stay secret. A batch that is cut from a shuffled table is not a Poisson sample.

    `noise_multiplier` is the standard deviation of the noise over the Euclidean sensitivity for add
    or remove, from `MIN_NOISE_MULTIPLIER` to `MAX_NOISE_MULTIPLIER`; for noise on the integers see
    `privacy.accountants.gaussian.discrete_noise_multiplier`. The sampling probability is public,
    above 0 and at most 1; the coins may not show more often than this. The adjacency is
    `ADD_REMOVE`: what is known of sampled draws is proven for it, and accountants derive the value
    for replacement.

    The other fields and errors are those of `GaussianEvent`.
    """

    statistic: str
    noise_multiplier: float
    sampling_probability: float
    n_values: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: ProtectedUnit = ProtectedUnit.PATIENT

    def __post_init__(self) -> None:
        _check_draw(self)
        noise = self.noise_multiplier
        if not (_is_number(noise) and MIN_NOISE_MULTIPLIER <= noise <= MAX_NOISE_MULTIPLIER):
            raise event_invalid(
                f"expected noise_multiplier to be a number from {MIN_NOISE_MULTIPLIER} to "
                f"{MAX_NOISE_MULTIPLIER}, found {shown(noise)}"
            )
        probability = self.sampling_probability
        if not (_is_number(probability) and _LEAST <= probability <= 1):
            raise event_invalid(
                "expected sampling_probability to be a number above 0 and at most 1, "
                f"found {shown(probability)}"
            )
        if self.adjacency is not Adjacency.ADD_REMOVE:
            raise event_invalid("expected add_remove for a Poisson sample, found replace_one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedEvent:
    """Events on the same patients, one after the other, each free to depend on earlier outputs.

    An empty tuple stands for no access to the data.
    """

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple) or not all(
            isinstance(event, Event) for event in self.events
        ):
            raise event_invalid("expected a tuple of events")
        units = {leaf.unit for leaf in leaves(self)}
        if len(units) > 1:
            raise event_invalid(
                f"expected events that protect one unit, found {' and '.join(sorted(units))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedEvent:
    """The same event so many times, up to `MAX_REPETITIONS` in all, with fresh noise each."""

    event: "Event"
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise event_invalid("expected an event to repeat")
        if not _is_count(self.count):
            raise event_invalid(
                f"expected count to be an integer from 1, found {shown(self.count)}"
            )
        if any(times > MAX_REPETITIONS for _, times in counted_draws(self)):
            raise event_invalid(
                f"expected at most {MAX_REPETITIONS} repetitions in all, found more"
            )


GaussianDraw = GaussianEvent | DiscreteGaussianEvent
UnsampledDraw = GaussianDraw | ExponentialMechanismEvent
"""Draws that read all patients: their cost is a number ``mu``."""

Draw = UnsampledDraw | PoissonSampledGaussianEvent
Event = Draw | ComposedEvent | RepeatedEvent


def counted_draws(event: Event, times: int = 1) -> Iterator[tuple[Draw, int]]:
    """Yield the draws of an event in order, each with how often it happens."""
    if isinstance(event, RepeatedEvent):
        yield from counted_draws(event.event, times * event.count)
    elif isinstance(event, ComposedEvent):
        for member in event.events:
            yield from counted_draws(member, times)
    else:
        yield event, times


def leaves(event: Event) -> tuple[Draw, ...]:
    """Return the draws of an event, in order; those of a repeated event are listed once."""
    return tuple(draw for draw, _ in counted_draws(event))
