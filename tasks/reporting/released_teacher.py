"""The released teacher of images: one file, whose use is post-processing and costs no budget."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.arrays import Floats
from privacy.errors import refusals
from storage.releases.measurements import arrays_of_bytes, arrays_to_bytes
from storage.schema.table import TableSchema
from tasks.measurement.method import Released
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.images.teacher import ReleasedTeacher
from tasks.reporting.teacher_files import BRIGHTEST, RELEASED_ARRAYS, TEACHER_FILE, teacher_arrays

refusal = refusals(__package__)


@dataclass(frozen=True, slots=True)
class Teacher:
    """A classifier of images, under the guarantee of a release; `arrays` are those of its file."""

    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, released: Released, schema: TableSchema) -> Self:
        """Return the teacher of a measurement of images, such as `released_` of a fitted model.

        It is a ConfigurationError if the method has no teacher.
        """
        return cls(teacher_arrays(released, schema))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a file of `to_bytes` (IntegrityError for any other)."""
        try:
            arrays = arrays_of_bytes(content)
        except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
            arrays = {}
        if arrays.keys() != {"classes", "shape", "code_of_pixel", *RELEASED_ARRAYS}:
            raise refusal("TEACHER_INVALID", file=TEACHER_FILE)
        return cls(arrays)

    def to_bytes(self) -> bytes:
        """Write an npz file of plain arrays; the same teacher gives the same bytes."""
        return arrays_to_bytes(self.arrays)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """Names (C,) of the labels, in the order of the probabilities."""
        return self.arrays["classes"]

    def predict_proba(self, images: ArrayLike) -> Floats:
        """Return the probabilities (n, C) of the labels of images.

        Images are (n, height, width), with a last axis of three colours, or (n, pixels) as the
        columns of a release, in whole numbers from 0 to 255 (else InputError).
        """
        given, shape = np.asarray(images), tuple(self.arrays["shape"].tolist())
        forms = {shape, shape[: 3 if shape[2] > 1 else 2], (int(np.prod(shape)),)}
        if (
            given.shape[1:] not in forms
            or given.dtype.kind not in "iu"
            or (given.size > 0 and not 0 <= given.min() <= given.max() <= BRIGHTEST)
        ):
            rows, columns, channels = shape
            raise refusal("IMAGES_INVALID", rows=rows, columns=columns, channels=channels)
        codes = self.arrays["code_of_pixel"][given.reshape(len(given), -1)]
        return self._taught.probabilities(codes)

    def predict(self, images: ArrayLike) -> NDArray[np.str_]:
        """Return the names (n,) of the most likely labels; see `predict_proba`."""
        return np.asarray(self.classes_[self.predict_proba(images).argmax(axis=1)])

    @property
    def _taught(self) -> ReleasedTeacher:
        height, width, channels = self.arrays["shape"].tolist()
        n_levels = int(self.arrays["code_of_pixel"].max()) + 1
        layout = ImageLayout(height, width, channels, n_levels, len(self.classes_))
        return ReleasedTeacher.of(self.arrays, layout)
