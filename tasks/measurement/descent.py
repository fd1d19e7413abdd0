"""Gradient descent with momentum or by Adam, a step at a time; post-processing of noisy gradients.

In numpy and float64: the same bits on every machine, without loading or compiling anything.

Source: Kingma and Ba 2015 for Adam; Polyak 1964 for the heavy ball.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from privacy.arrays import Floats

_SECOND_DECAY, _FLOOR = 0.999, 1e-8
"""Adam's usual constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """State of a descent: parameters, means of gradients and, of Adam, of their squares."""

    kind: Literal["adam", "momentum"]
    learning_rate: float
    momentum: float
    parameters: Floats
    first: Floats
    second: Floats
    n_steps: int

    def step(self, gradients: Floats) -> Self:
        """Descend along gradients of the shape of the parameters."""
        n_steps = self.n_steps + 1
        if self.kind == "momentum":
            first = self.momentum * self.first + gradients
            parameters = self.parameters - self.learning_rate * first
            return replace(self, parameters=parameters, first=first, n_steps=n_steps)
        first = self.momentum * self.first + (1.0 - self.momentum) * gradients
        second = _SECOND_DECAY * self.second + (1.0 - _SECOND_DECAY) * np.square(gradients)
        direction = first / (1.0 - self.momentum**n_steps)
        spread = np.sqrt(second / (1.0 - _SECOND_DECAY**n_steps)) + _FLOOR
        return replace(
            self,
            parameters=self.parameters - self.learning_rate * direction / spread,
            first=first,
            second=second,
            n_steps=n_steps,
        )
