"""Public settings of DP-CDA."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from privacy.errors import refusals
from tasks.measurement.method_settings import MethodSettings

refusal = refusals(__package__)

MAX_ORDER = 100_000


class DpCdaConfig(MethodSettings):
    """Settings of DP-CDA. All are public.

    Declared sizes need not be exact: a wrong one costs utility, never privacy.
    """

    kind: Literal["dp_cda"] = "dp_cda"
    order_of_mixture: int = Field(default=128, ge=1, le=MAX_ORDER)
    """Records of one class in a mixture (l), about."""
    declared_patients: int = Field(default=10_000, ge=1)
    """Declared number of patients, in classes of equal size."""
    class_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None)
    """Declared patients of each class, instead of equal sizes."""
    one_hot_levels: int = Field(default=64, ge=0, le=1024)
    """Numeric columns of at most this many codes have a coordinate for each code."""
    l2_clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm c of a record; left out: no clipping."""
    centre: float | None = Field(default=None, ge=-10, le=10)
    """Subtracted from features in [0, 1]; left out: the middle, or 0 where records are clipped."""
    scale: float = Field(default=1.0, gt=0, le=1000)
    """Divides the features after the centre."""
    count_share: float = Field(default=0.02, gt=0, lt=1)
    """Share of the budget for the sizes of the classes."""

    @model_validator(mode="after")
    def _check_class_sizes(self) -> Self:
        smallest = min(self.class_sizes, default=0) if self.class_sizes is not None else None
        if smallest is not None and smallest < self.order_of_mixture:
            raise ValueError(
                "expected every declared class to have as many patients as order_of_mixture, "
                "found a smaller one; lower order_of_mixture, or join or leave out rare classes"
            )
        return self

    def smallest_class(self, n_labels: int) -> float:
        """Return the least declared size; ConfigurationError if below the order, or of others."""
        if self.class_sizes is None:
            size = self.declared_patients / n_labels
            if size < self.order_of_mixture:
                raise refusal("ORDER_ABOVE_CLASS", size=size, order=self.order_of_mixture)
            return size
        if len(self.class_sizes) != n_labels:
            raise refusal("CLASS_SIZES_INVALID", n_labels=n_labels, found=len(self.class_sizes))
        return float(min(self.class_sizes))
