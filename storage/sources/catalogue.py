"""Public datasets by name: where a copy lies, its SHA-256, and how it is made of others."""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from storage.sources.joined_tables import heart_disease, nafld


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A dataset that anybody may read.

    Attributes
    ----------
    relative_path : str
        Path under the data folder.
    sha256 : str
        SHA-256 of the file at that path; without `url` also that of what `build` makes.
    url : str or None
        Address of the publisher's zip archive; None if there is none of which the file can be made.
    members : mapping of str to str
        SHA-256 of each published file that `build` needs, by its name: a member of the archive, or
        a file in the folder of `relative_path` under the data folder.
    build : callable
        From the verified members to the bytes of the file, not compressed.
    """

    name: str
    relative_path: str
    sha256: str
    publisher: str
    url: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    build: Callable[[Mapping[str, bytes]], bytes] | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that `build` makes."""
        return Path(self.relative_path).name.removesuffix(".gz")


_ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income split"
).split()


def _build_adult(members: Mapping[str, bytes]) -> bytes:
    """Join the two parts: header and `split` added, blanks and the test labels' dot removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_ADULT_COLUMNS)
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        for line in members[member].decode("ascii").splitlines():
            if line and not line.startswith("|"):
                cells = [cell.strip() for cell in line.split(",")]
                cells[-1] = cells[-1].removesuffix(".")
                writer.writerow([*cells, split])
    return text.getvalue().encode("ascii")


def _build_diabetes130(members: Mapping[str, bytes]) -> bytes:
    """Convert to Parquet; the missing code '?' and the category 'None' stay text."""
    frame = pd.read_csv(
        io.BytesIO(members["diabetic_data.csv"]), keep_default_na=False, low_memory=False
    )
    target = io.BytesIO()
    frame.to_parquet(target, index=False)
    return target.getvalue()


def _one_file(name: str, file: str, sha256: str, publisher: str) -> PublicDataset:
    """Return a dataset that is one Parquet file, named by its folder, with no archive to fetch."""
    return PublicDataset(
        name=name, relative_path=f"{name}/{file}.parquet", sha256=sha256, publisher=publisher
    )


DATASETS: Mapping[str, PublicDataset] = {
    dataset.name: dataset
    for dataset in (
        PublicDataset(
            name="adult",
            relative_path="adult.csv.gz",
            sha256="9653a39fc84ab1a35bd443daad61a6c7294ef9eac5b7b14601e36937915e3836",
            publisher="UCI Machine Learning Repository, dataset 2 (Becker and Kohavi, 1996)",
            url="https://archive.ics.uci.edu/static/public/2/adult.zip",
            members={
                "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            },
            build=_build_adult,
        ),
        PublicDataset(
            name="diabetes130",
            relative_path="diabetes130/diabetic_data.parquet",
            sha256="0135da936664f4ce71c6924aadc37d80d4366fa74570659e5787b668d988ccf3",
            publisher="UCI Machine Learning Repository, dataset 296 (Strack et al., 2014)",
            url="https://archive.ics.uci.edu/static/public/296/"
            "diabetes+130-us+hospitals+for+years+1999-2008.zip",
            members={
                "diabetic_data.csv": (
                    "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97"
                ),
            },
            build=_build_diabetes130,
        ),
        PublicDataset(
            name="physionet2012",
            relative_path="physionet2012/icu_stays_wide.parquet",
            sha256="6ccbed33b634f8193f842163636838cd7ec43569d8e993cf314f7f2cc95b6553",
            publisher="PhysioNet/CinC Challenge 2012, one row per stay (Silva et al., 2012)",
        ),
        _one_file(
            "arrhythmia",
            "arrhythmia",
            "14e5cdd5c06017fd6f42a85c7acade601605ee922c21710886f439870e3a5d86",
            "UCI Machine Learning Repository, dataset 5 (Guvenir et al., 1997)",
        ),
        _one_file(
            "bank_marketing",
            "bank_additional_full",
            "fd42fc43c082591a17479d9629133f86c6af8713c1d1ed5636b50447bdc69f46",
            "UCI Machine Learning Repository, dataset 222 (Moro et al., 2014)",
        ),
        _one_file(
            "brfss2015_diabetes",
            "brfss2015_diabetes",
            "7869a7f6c080555a2a26717ee9174687c7ac6f894b116e194ede421fdd497ce7",
            "CDC, BRFSS 2015, UCI dataset 891 (Teboul, 2021)",
        ),
        _one_file(
            "cardiotocography",
            "ctg_raw",
            "e2766ab8e334abd85364d39516604167b04789edca2a47ecaba108b3131dd27e",
            "UCI Machine Learning Repository, dataset 193 (Ayres de Campos et al., 2000)",
        ),
        _one_file(
            "census_income_kdd",
            "census_income_data",
            "6c713340ebd48f88d943a6d3918f2e5365fa1ca5d3d6ee8de8e9dea7202ef13f",
            "UCI Machine Learning Repository, dataset 117 (Lane and Kohavi, 2000)",
        ),
        _one_file(
            "cervical_cancer_risk",
            "risk_factors_cervical_cancer",
            "5659d0aaa488952c38d4b93412ce4a1fd42c5c26dabf7fe18eb8e95d3b967b6b",
            "UCI Machine Learning Repository, dataset 383 (Fernandes et al., 2017)",
        ),
        _one_file(
            "chronic_kidney_disease",
            "chronic_kidney_disease",
            "a0a1738b694e1268e15cafa44630256c3662f884c4cef397d6917861cdd9bcfe",
            "UCI Machine Learning Repository, dataset 336 (Rubini et al., 2015)",
        ),
        _one_file(
            "flchain",
            "flchain",
            "5f8e1ab6a2e650ac5435ed72e77231c0e9cf9f463686160451d1734b183d18a0",
            "R package survival 3.8-6 (Dispenzieri et al., 2012)",
        ),
        _one_file(
            "isolet",
            "isolet1234",
            "aea9f4d0d19b701d837e8ca902e1a7b3bfa0c0882357a25c2e8edd7ef628b00e",
            "UCI Machine Learning Repository, dataset 54 (Cole and Fanty, 1994)",
        ),
        _one_file(
            "nhanes_2009_2012",
            "nhanes_raw",
            "822bb946113201d8b9a3692dcedac1ffc85336f6095aa4ecf714a0f43612a871",
            "R package NHANES 2.1.0 (National Center for Health Statistics)",
        ),
        _one_file(
            "nycflights13",
            "flights",
            "ca87003597abecf3e61530e370291ec6a7cb74f8c85b216d4f5817b20f2eadc4",
            "R package nycflights13 (Wickham)",
        ),
        _one_file(
            "parkinsons_telemonitoring",
            "parkinsons_updrs",
            "f267f28ec33c25ea5cdddb7db72e8dbc38bbf78c267fe37e4a2a3ff2015d6aa3",
            "UCI Machine Learning Repository, dataset 189 (Tsanas et al., 2009)",
        ),
        _one_file(
            "rotterdam",
            "rotterdam",
            "026a4cad1b33300db6e858b9c3dda89fe4d6b8f4137579e20ac50408d19c0b34",
            "R package survival 3.8-6 (Royston and Altman, 2013)",
        ),
        _one_file(
            "thyroid0387",
            "thyroid0387",
            "3bdfc39c38334fe9e8d2b94c8a4f98c387b182212d65f64fa3e97a31a105abd1",
            "UCI Machine Learning Repository, dataset 102 (Quinlan, 1987)",
        ),
        PublicDataset(
            name="heart_disease_uci",
            relative_path="heart_disease_uci/four_hospitals.csv",
            sha256="31b4ec541342ebe55571a88fd75ce5805693ffb172a9138d3c510e658379da31",
            publisher="UCI Machine Learning Repository, dataset 45 (Detrano et al., 1989)",
            members={
                "cleveland.parquet": (
                    "ba711608ef78b97ab262ecd1b109072b4f16a8d8e96d7a042e73afd3e16aa980"
                ),
                "hungarian.parquet": (
                    "88dae233198f1ce95903b1c8ba18a8b7306544f9220d9a0a73fb83466864c632"
                ),
                "switzerland.parquet": (
                    "98e4c7d1efa05a769221d0a34674aca69797f680c9b4e00d979341b3ec36f0d5"
                ),
                "va.parquet": ("959001cf18372c367abb1b2cb9f06c5f4a44a418e6b1ac725ea317ae869f7e30"),
            },
            build=heart_disease,
        ),
        PublicDataset(
            name="nafld",
            relative_path="nafld/people.csv",
            sha256="bc9bbd904459c5ed5db3fc48763e35127b22bcf93a852b41506f64e2df64594a",
            publisher="R package survival 3.8-6 (Allen et al., 2018)",
            members={
                "nafld1.parquet": (
                    "46200cb412c025848b6b92f1e3070343f5d2752576180c1fbd15a2a249f23961"
                ),
                "nafld2.parquet": (
                    "3b2b549c9223d2e8115b3dfdfc961dfdf7a9c006764adae490c50b0616abdb08"
                ),
                "nafld3.parquet": (
                    "01bafe7e36710f6db25c504d23e85cc9ce9e5fd1c742c30d50f0201b45db8936"
                ),
            },
            build=nafld,
        ),
    )
}
