"""Files of the released teacher: its arrays, and labels of released images; post-processing."""

import io
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats
from privacy.errors import ClustMixError, refusals
from storage.releases.measurements import arrays_to_bytes
from storage.schema.table import TableSchema
from tasks.measurement.method import Released, Synthesizer

refusal = refusals(__package__)

TEACHER_FILE = "teacher.npz"
SOFT_LABELS_FILE = "soft_labels.parquet"

RELEASED_ARRAYS = ("whitening_matrix", "whitening_scales", "whitening_shift", "teacher_weights")

BRIGHTEST = 255
"""Value of a white pixel; that of a black one is 0."""


@runtime_checkable
class _ReleasesTeacher(Protocol):
    """A method that releases a classifier: ClustMix of images."""

    def probabilities(self, released: Released, codes: Codes) -> Floats:
        """Return the probabilities (n, C) of the labels of images as codes (n, columns)."""


def teacher_files(
    synthesizer: Synthesizer | _ReleasesTeacher,
    released: Released,
    schema: TableSchema,
    codes: Codes,
    *,
    soft_labels: bool,
) -> dict[str, bytes]:
    """Return the teacher's file, if any, and if asked its probabilities of images (n, columns)."""
    if not isinstance(synthesizer, _ReleasesTeacher):
        return {}
    files = {TEACHER_FILE: arrays_to_bytes(teacher_arrays(released, schema))}
    if soft_labels:
        found = synthesizer.probabilities(released, codes).astype(np.float32)
        frame, content = pd.DataFrame(found, columns=list(schema.labels.level_names)), io.BytesIO()
        frame.to_parquet(content, index=False, compression="zstd")
        files[SOFT_LABELS_FILE] = content.getvalue()
    return files


def teacher_arrays(released: Released, schema: TableSchema) -> dict[str, NDArray[Any]]:
    """Return the arrays of the file (ConfigurationError for a method without a teacher)."""
    if schema.image is None or "teacher_weights" not in released:
        raise no_teacher()
    starts = schema.image.columns[0].bin_starts
    codes = np.searchsorted(starts, np.arange(BRIGHTEST + 1), side="right") - 1
    return {
        "classes": np.array(schema.first_label.level_names),
        "shape": np.array(schema.image.shape),
        "code_of_pixel": codes.astype(np.uint16),
        **{name: released[name] for name in RELEASED_ARRAYS},
    }


def no_teacher() -> ClustMixError:
    """Return the error for a release without a teacher."""
    return refusal("NO_TEACHER")
