"""Tangent kernels of networks of infinite width, by neural-tangents: its only adapter.

Version 0.6.5 is the last. It imports names that jax has moved since, which are put back before it
is imported, and tensorflow for a part that is not used here.

Source: Jacot et al., "Neural tangent kernel", 2018; Novak et al., "Neural Tangents", 2020.
"""

import importlib
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from privacy.errors import extra

Kernel: TypeAlias = Callable[[Any, Any], Any]
"""Rows x (n, d) and y (m, d) to the kernel matrix (n, m), differentiable in both."""


def tangent_kernel(
    *,
    depth: int,
    weight_std: float = 1.0,
    bias_std: float = 0.0,
    image: tuple[int, int, int] | None = None,
) -> Kernel:
    """Return the tangent kernel of a ReLU network with `depth` hidden layers and one output.

    Weights and biases are normal, in the NTK parameterisation. With an image (height, width and
    channels) hidden layers are convolutions of 3 x 3 pixels, with zeros around the image, and rows
    are images, pixel by pixel; otherwise they are dense. Needs the extra ``distill``.
    """
    stax, scales = _stax(), {"W_std": weight_std, "b_std": bias_std}
    hidden = [
        layer
        for _ in range(depth)
        for layer in (
            stax.Dense(1, **scales)
            if image is None
            else stax.Conv(1, (3, 3), padding="SAME", **scales),
            stax.Relu(),
        )
    ]
    flat = [] if image is None else [stax.Flatten()]
    network = stax.serial(*hidden, *flat, stax.Dense(1, **scales))[2]

    def kernel(x: Any, y: Any) -> Any:
        if image is not None:
            x, y = x.reshape(-1, *image), y.reshape(-1, *image)
        return network(x, y, "ntk")

    return kernel


@cache
def _stax() -> Any:
    """Import neural-tangents, where the names are that it expects."""
    core, extended = importlib.import_module("jax.core"), importlib.import_module("jax.extend.core")
    for name in ("Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var"):
        if not hasattr(core, name):
            setattr(core, name, getattr(extended, name))
    rules: Any = importlib.import_module("jax.interpreters.ad")
    if not hasattr(rules, "zeros_like_p"):
        rules.zeros_like_p = extended.Primitive("zeros_like_removed")
    inner = importlib.import_module("jax._src.util")
    moved: Any = types.ModuleType("jax.util")
    moved.safe_map, moved.safe_zip = inner.safe_map, inner.safe_zip
    sys.modules.setdefault("jax.util", moved)
    # Its experiments need tensorflow.
    experiments = types.ModuleType("neural_tangents.experimental")
    sys.modules.setdefault("neural_tangents.experimental", experiments)
    with extra("distill"):
        from neural_tangents import stax
    return stax
