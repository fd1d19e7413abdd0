"""Diabetes 130-US hospitals as sets of items: drugs and kinds of diagnoses.

Every rule is public and reads one encounter: a drug item is 1 if the drug was given in any dose, a
diagnosis item is 1 if one of the three diagnoses lies in its range of codes. The
ranges are blocks of three-digit codes in the tabular list of ICD-9-CM (National Center for Health
Statistics, public domain), in places several neighbouring ones together.
"""

import io

import numpy as np
import pandas as pd

from privacy.arrays import Indices
from storage.files.documents import listed

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

    `encounters` is the table of the dataset. The result has a row for each of its rows, in order:
    ``patient_nbr``, a column of 0 and 1 for each of `ITEMS`, ``readmitted``. A diagnosis in no
    range, such as a missing one, is no item.
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
