"""Golden arrays: a seeded measurement of each method, held as a digest beside its version.

If a digest changes, the method draws something else for the same settings. Then its `version` in
the registry has to be raised, with the digest here, so that a table is measured again by the new
method. So it is with `ENCODING_VERSION`. If the digest of the settings changes, every table is
measured and charged again at the next upgrade: give a new key of a site file an ``exclude_if``.
"""

import hashlib

import made_up_release as made
import numpy as np
import pytest
from measuring import curator_of, domain_with, rows_with
from pydantic import TypeAdapter
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.in_process import SeededNoise
from flows.site.request import job_of
from flows.site.site_file import load_site
from storage.files.diagnostics import DiagnosticsFile
from storage.files.documents import canonical_json
from storage.files.workspace import PrivateWorkspace
from storage.sources.cohorts import CohortReader
from tasks.ingest.shards import ShardFile
from tasks.measurement.method import measure
from tasks.methods.registry import build, method_entry
from tasks.steps.ingest_steps import ingest
from tasks.steps.job import MethodConfig
from tasks.steps.source import ENCODING_VERSION

MU, N_PATIENTS, SIDE = 2.0, 120, 6

TABLE = domain_with(4, 2, 9, 3, numeric=(0, 2), missing=(0,), rows_per_patient=2, patients=120)
IMAGES = domain_with(
    *(16,) * SIDE**2, numeric=range(SIDE**2), labels=("a", "b", "c"), patients=120,
    image=(SIDE, SIDE, 1),
)  # fmt: skip

DPGM = {"kind": "dpgm", "clusters": 3, "min_cluster_size": 5, "fourier_features": 16}
CASES = {
    "naive_bayes": ({"kind": "naive_bayes"}, TABLE),
    "clustmix on tables": ({"kind": "clustmix"}, TABLE),
    "clustmix on images": ({"kind": "clustmix"}, IMAGES),
    "dp_cda of groups": (
        {"kind": "dp_cda", "declared_patients": 120, "order_of_mixture": 5},
        TABLE,
    ),
    "dp_kmeans": ({"kind": "dp_kmeans", "clusters": 3}, TABLE),
    "dpgm of rbm": ({**DPGM, "hidden_units": 8}, TABLE),
    "dpgm of vae": ({**DPGM, "network": "vae", "hidden_units": 4, "epochs": 2}, TABLE),
}

FITTED = ("drawn residual", "drawn kernel", "mixture", "strong", "kernel", "label_scores")
"""Beginnings of the names of arrays of ClustMix on tables that depend on the processor.

The mixture is trained in single precision for a thousand steps, and what is drawn afterwards is
drawn of its residuals, so that the last bit of a sum changes them.
"""

PROCESSOR = "SkylakeX"
"""BLAS kernels under which the digest of the fitted arrays was made; it is checked on these."""

VERSIONS = {"naive_bayes": 1, "clustmix": 2, "dp_cda": 1, "dp_kmeans": 1, "dpgm": 1}
"""Version of each method for which these digests hold."""

GOLDEN = {
    "naive_bayes": "ab57f4db5f65263168c984d58e88ad77e6efe3173cf05962dea09d7e9985ace3",
    "clustmix on tables": "e551a088713838562312c7358bc138f930252f7ad001b5a3d3a57589146013a6",
    "clustmix on images": "029ac69f22c39d723afc0af1038dc631dbeeca27f1513cebce1a230c37c96808",
    "dp_cda of groups": "b4a7cb7cecf9b23ec99fa41d81afa7e65792ec6ed94d1ec4b608af4b9ec6ffc0",
    "dp_kmeans": "4ae4ec3072c6995db5bb738c3f6c8a28d0c534bfdaf54c6214dd23673ffa8cba",
    "dpgm of rbm": "089378fd6c373c7ce53a68683e1b83586a8d5e2e21f012b6fffbc62fdfc80fb7",
    "dpgm of vae": "53eea1c8f5df3c3623ba0f287c38b65ebbe7379e93560ad14aa5c9d33b4c46d5",
}
ENCODED = "cdafcf5f12907cb196816efcac8d67802991752407efbde75e58b60b519a0304"
SETTINGS = "eeeee9628aaf2af3c23b9217d0d0758f1ce3927aa518444ffc0ccc52929ccb52"
FITTED_DIGEST = "654e88e49bba7ecf535f1a70b1dd2ea72247e77800fee8323deb785870b157b8"


def rows_of(domain):
    rng = np.random.default_rng(5)
    per_patient = rng.integers(1, 1 + domain.rows_per_patient, N_PATIENTS)
    patient = np.repeat(np.arange(N_PATIENTS), per_patient)
    label = rng.integers(0, domain.n_labels, len(patient))
    codes = np.column_stack(
        [
            np.minimum(rng.poisson(0.2 * width * (1 + (label + place) % 3) / 2), width - 1)
            for place, width in enumerate(domain.n_codes)
        ]
    )
    return rows_with(codes, label, weight=1.0 / per_patient[patient], fold=patient % 5)


def digest_of_arrays(arrays):
    """SHA-256 of named arrays, in the order of their names.

    Draws are whole numbers and are hashed as they are. Released numbers are rounded to a thousandth
    of their array's largest: another processor adds up in another order, and the last bits of a
    network's weights, for example, differ.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        values = np.asarray(array)
        if values.dtype.kind == "f":
            step = 1e-3 * max(float(np.abs(values).max(initial=0.0)), 1e-300)
            values = np.rint(values.astype(np.float64) / step)
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(values.astype(np.int64).tobytes())
    return digest.hexdigest()


def measured(case):
    settings, domain = CASES[case]
    method = build(TypeAdapter(MethodConfig).validate_python(settings), domain)
    draws = {}

    def seal(name, noisy):
        draws[f"drawn {name}"] = noisy.values

    curator = curator_of(method, [rows_of(domain)], SeededNoise(7), mu=MU, seal=seal)
    with threadpool_limits(1, user_api="blas"):  # sums of two threads depend on the processors
        released = measure(method, curator)
    return draws | released


@pytest.mark.parametrize("case", CASES)
def test_what_is_drawn_changes_only_with_the_version_of_the_method(case):
    kind = CASES[case][0]["kind"]
    assert method_entry(kind).version == VERSIONS[kind]
    arrays = measured(case)
    fitted = {}
    if case == "clustmix on tables":
        fitted = {name: arrays.pop(name) for name in list(arrays) if name.startswith(FITTED)}
    assert digest_of_arrays(arrays) == GOLDEN[case]
    if fitted and {blas.get("architecture") for blas in threadpool_info()} == {PROCESSOR}:
        assert digest_of_arrays(fitted) == FITTED_DIGEST


def made_up_job(folder):
    cohort = made.made_up_cohort().drop(index=1_234)  # the row that breaks rules
    site = made.write_site(folder, cohort=cohort)
    return job_of(load_site(site), "r-20260101-00000000")


def test_codes_and_weights_change_only_with_the_version_of_the_encoding(tmp_path):
    job = made_up_job(tmp_path)
    with PrivateWorkspace.create(tmp_path / "private", "r-1") as workspace:
        diagnostics = DiagnosticsFile(tmp_path / "private" / "d.jsonl")
        reader = CohortReader(job.source)
        paths = ingest(
            job.columns_to_read, job.rules, reader, workspace=workspace, diagnostics=diagnostics
        )
        digest = hashlib.sha256()
        for rows in (ShardFile(path).load() for path in paths):
            for part in (rows.codes, rows.label, rows.weight, rows.fold):
                digest.update(part.tobytes())
    assert (ENCODING_VERSION, digest.hexdigest()) == (1, ENCODED)


def test_settings_of_a_measurement_change_only_where_every_table_is_charged_again(tmp_path):
    settings = canonical_json(made_up_job(tmp_path).measurement_settings)
    assert hashlib.sha256(settings).hexdigest() == SETTINGS
