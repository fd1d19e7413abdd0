"""Diabetes 130-US hospitals as sets of items: which drugs, and diagnoses of which kind.

Every rule here is public and looks at one encounter: a drug item is 1 if the drug was given in
whatever dose, a diagnosis item is 1 if one of the three diagnoses lies in its range of codes. The
ranges are blocks of three-digit codes in the tabular list of ICD-9-CM (National Center for Health
Statistics, public domain), in places several neighbouring ones together.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pandas as pd
from numpy.typing import NDArray

DRUGS = (
    "metformin repaglinide nateglinide chlorpropamide glimepiride acetohexamide glipizide "
    "glyburide tolbutamide pioglitazone rosiglitazone acarbose miglitol troglitazone tolazamide "
    "examide citoglipton insulin glyburide-metformin glipizide-metformin "
    "glimepiride-pioglitazone metformin-rosiglitazone metformin-pioglitazone"
).split()
"""The drug columns of the table, in its order; each is an item of the same name."""

DIAGNOSES: tuple[tuple[int, int, str], ...] = (
    (1, 9, "intestinal-infections"),
    (10, 18, "tuberculosis"),
    (20, 41, "bacterial-diseases"),
    (42, 79, "viral-diseases"),
    (80, 139, "other-infections"),
    (140, 149, "cancer-mouth-throat"),
    (150, 159, "cancer-digestive"),
    (160, 165, "cancer-chest"),
    (170, 176, "cancer-bone-skin-breast"),
    (179, 189, "cancer-genitourinary"),
    (190, 199, "cancer-other-secondary"),
    (200, 209, "cancer-blood-endocrine"),
    (210, 239, "neoplasms-benign-uncertain"),
    (240, 246, "thyroid"),
    (249, 250, "diabetes"),
    (251, 259, "other-endocrine"),
    (260, 269, "nutritional-deficiencies"),
    (270, 279, "other-metabolic"),
    (280, 285, "anemias"),
    (286, 289, "other-blood"),
    (290, 294, "organic-psychoses"),
    (295, 299, "other-psychoses"),
    (300, 319, "other-mental"),
    (320, 327, "nervous-inflammatory-sleep"),
    (330, 337, "nervous-degenerative"),
    (338, 349, "other-central-nervous"),
    (350, 359, "peripheral-nervous"),
    (360, 379, "eye"),
    (380, 389, "ear"),
    (390, 398, "rheumatic-heart"),
    (401, 405, "hypertensive"),
    (410, 414, "ischemic-heart"),
    (415, 417, "pulmonary-circulation"),
    (420, 429, "other-heart"),
    (430, 438, "cerebrovascular"),
    (440, 449, "arteries"),
    (451, 459, "veins-lymphatics"),
    (460, 478, "upper-respiratory"),
    (480, 488, "pneumonia-influenza"),
    (490, 496, "chronic-pulmonary"),
    (500, 519, "other-respiratory"),
    (520, 529, "mouth"),
    (530, 539, "esophagus-stomach"),
    (540, 553, "appendix-hernia"),
    (555, 569, "intestines"),
    (570, 579, "liver-gallbladder-pancreas"),
    (580, 589, "nephritis-renal-failure"),
    (590, 599, "other-urinary"),
    (600, 608, "male-genital"),
    (610, 629, "breast-female-genital"),
    (630, 679, "pregnancy-childbirth"),
    (680, 686, "skin-infections"),
    (690, 709, "other-skin"),
    (710, 719, "joints"),
    (720, 724, "spine"),
    (725, 739, "other-musculoskeletal"),
    (740, 779, "congenital-perinatal"),
    (780, 789, "symptoms"),
    (790, 799, "abnormal-findings"),
    (800, 819, "fractures-head-trunk-arm"),
    (820, 829, "fractures-leg"),
    (830, 848, "dislocations-sprains"),
    (850, 869, "internal-injuries"),
    (870, 939, "wounds-other-injuries"),
    (940, 959, "burns-nerves-complications"),
    (960, 979, "drug-poisoning"),
    (980, 995, "toxic-external-effects"),
    (996, 999, "complications-of-care"),
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
    """Turn the Parquet file of the dataset into one of `items_of`."""
    columns = [PATIENT, LABEL, *DRUGS, *_DIAGNOSIS_COLUMNS]
    target = io.BytesIO()
    items_of(pd.read_parquet(io.BytesIO(encounters), columns=columns)).to_parquet(
        target, index=False
    )
    return target.getvalue()


def items_sha256(content: bytes) -> str:
    """Return a digest of the table in a Parquet file: names, cells and their order.

    The bytes of a Parquet file change with the library that writes it; this does not.
    """
    table = pd.read_parquet(io.BytesIO(content))
    digest = hashlib.sha256("\n".join([*table.columns, ""]).encode())
    for name in table.columns:
        cells = table[name]
        if pd.api.types.is_integer_dtype(cells):
            digest.update(cells.to_numpy(dtype="<i8").tobytes())
        else:
            digest.update("\n".join([*cells, ""]).encode())
    return digest.hexdigest()


def _places(codes: pd.Series) -> NDArray[np.intp]:
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
