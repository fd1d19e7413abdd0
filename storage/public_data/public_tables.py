"""Public datasets by name, as ``tables.toml`` lists them, made from the published files.

Every rule reads the rows of one person. Images become a table with a column for each pixel, row by
row, and one for the label. Encounters in US hospitals become sets of items: a drug item is 1 if
the drug was given in any dose, a diagnosis item is 1 if one of the three diagnoses lies in its
range of codes. The ranges are blocks of three-digit codes in the tabular list of ICD-9-CM (National
Center for Health Statistics, public domain), in places several neighbouring ones together.
"""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from privacy.arrays import Indices
from storage.files.documents import listed
from storage.schema.column_blocks import LABEL_NAME, pixel_names

DRUGS = listed(__package__, "columns.toml")["drugs"].split()
"""The drug columns of the table, in its order; each is an item of the same name."""

DIAGNOSES = tuple(
    (first, last, name) for name, (first, last) in listed(__package__, "diagnoses.toml").items()
)
"""First code, last code and name of each kind of diagnosis; codes with V and E come after them."""

FACTORS, EXTERNAL_CAUSES = "health-factors-V", "external-causes-E"
"""Names of the supplementary chapters of ICD-9-CM, V01 to V91 and E000 to E999."""

ITEMS = (
    *DRUGS,
    *(f"diag-{name}" for _, _, name in DIAGNOSES),
    *(f"diag-{name}" for name in (FACTORS, EXTERNAL_CAUSES)),
)
"""Names of the items, in the order of the table."""

PATIENT, LABEL = "patient_nbr", "readmitted"
_DIAGNOSIS_COLUMNS = ("diag_1", "diag_2", "diag_3")
_NO_DRUG = "No"


def items_of(encounters: pd.DataFrame) -> pd.DataFrame:
    """Turn encounters into sets of items.

    `encounters` is the table of the dataset; row by row the result has ``patient_nbr``, a column of
    0 and 1 for each item of `ITEMS`, ``readmitted``. A diagnosis in no range, or missing, is none.
    """
    drugs = (encounters[list(DRUGS)] != _NO_DRUG).to_numpy(dtype=np.uint8)
    diagnoses = np.zeros((len(encounters), len(ITEMS) - len(DRUGS)), dtype=np.uint8)
    for column in _DIAGNOSIS_COLUMNS:
        places = _places(encounters[column])
        rows = np.flatnonzero(places >= 0)
        diagnoses[rows, places[rows]] = 1
    items = pd.DataFrame(np.hstack([drugs, diagnoses]), columns=list(ITEMS))
    items.insert(0, PATIENT, encounters[PATIENT].to_numpy())
    return items.assign(**{LABEL: encounters[LABEL].to_numpy()})


def items_parquet(encounters: bytes) -> bytes:
    """Convert the Parquet file of encounters to one of `items_of`."""
    columns = [PATIENT, LABEL, *DRUGS, *_DIAGNOSIS_COLUMNS]
    items = items_of(pd.read_parquet(io.BytesIO(encounters), columns=columns))
    content: bytes = items.to_parquet(index=False)
    return content


def _places(codes: pd.Series) -> Indices:
    """Return the place of each code among the kinds of diagnoses, -1 where it is in none."""
    index, uniques = pd.factorize(codes, use_na_sentinel=True)
    # The last entry serves index -1, an empty cell.
    return np.array([*(_place(str(code)) for code in uniques), -1], dtype=np.intp)[index]


def _place(code: str) -> int:
    if code[:1] in ("V", "E"):
        return len(DIAGNOSES) + ("V", "E").index(code[0])
    whole = code.split(".", maxsplit=1)[0]
    if whole.isascii() and whole.isdecimal():
        for place, (first, last, _) in enumerate(DIAGNOSES):
            if first <= int(whole) <= last:
                return place
    return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A dataset that anybody may read.

    `relative_path` is the place of a copy under a data folder, `sha256` its digest, or None if only
    members are published. `url` is the address of the publisher's zip archive of the members, or,
    if it ends with a slash, of the folder that holds each of them compressed (``.gz``). `members`
    has the SHA-256 of each published file, decompressed, by its name; a derived dataset has instead
    `of`, the name of its origin. `build` makes the file, not compressed, from the verified members.
    """

    name: str
    relative_path: str
    sha256: str | None = None
    publisher: str
    url: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    of: str | None = None
    build: Callable[[Mapping[str, bytes]], bytes] | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that `build` makes."""
        return Path(self.relative_path).name.removesuffix(".gz")


def _adult(members: Mapping[str, bytes]) -> bytes:
    """Join the two parts: header and `split` added, blanks and the test labels' dot removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(listed(__package__, "columns.toml")["adult"].split())
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        for line in members[member].decode("ascii").splitlines():
            if line and not line.startswith("|"):
                cells = [cell.strip() for cell in line.split(",")]
                cells[-1] = cells[-1].removesuffix(".")
                writer.writerow([*cells, split])
    return text.getvalue().encode("ascii")


def _diabetes130(members: Mapping[str, bytes]) -> bytes:
    """Convert to Parquet; the missing code '?' and the category 'None' stay text."""
    frame = pd.read_csv(
        io.BytesIO(members["diabetic_data.csv"]), keep_default_na=False, low_memory=False
    )
    content: bytes = frame.to_parquet(index=False)
    return content


_ROWS_OF_A_GROUP = 10_000


def idx_images(members: Mapping[str, bytes]) -> bytes:
    """Convert the two verified files of a dataset in the format of MNIST to Parquet.

    An idx file is two zeros, the type 8 of unsigned bytes, the number of axes, the length of each
    axis (big endian), and the bytes. Source: LeCun, Cortes and Burges, "The MNIST database".
    """
    arrays = {}
    for content in members.values():
        n_axes = content[3]
        shape = np.frombuffer(content, dtype=">u4", count=n_axes, offset=4)
        values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * n_axes)
        arrays[n_axes] = values.reshape([*map(int, shape)])
    return images_parquet(arrays[3], arrays[1])


def images_parquet(pixels: NDArray[np.uint8], label: NDArray[np.integer]) -> bytes:
    """Return images (n, height, width) or (n, height, width, 3) and labels (n,) as Parquet."""
    columns = np.ascontiguousarray(pixels.reshape(len(pixels), -1).T)
    names = [*pixel_names(*pixels.shape[1:]), LABEL_NAME]
    target = io.BytesIO()
    table = pa.Table.from_arrays([pa.array(column) for column in (*columns, label)], names=names)
    pq.write_table(table, target, row_group_size=_ROWS_OF_A_GROUP)
    return target.getvalue()


_BUILDS: Mapping[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "adult": _adult,
    "diabetes130": _diabetes130,
    "diabetes130_items": lambda members: items_parquet(members["diabetes130"]),
    **dict.fromkeys(("mnist", "mnist_test", "fashion_mnist", "fashion_mnist_test"), idx_images),
}


DATASETS = {
    name: PublicDataset(name=name, build=_BUILDS.get(name), **facts)
    for name, facts in listed(__package__, "tables.toml").items()
}
