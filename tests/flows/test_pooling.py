"""Pools of sealed measurements, exported or not, judged from their files."""

import json
import shutil
from pathlib import Path

import made_up_release as made
import numpy as np
import pandas as pd
import pytest

from clustmix import verify
from flows.cli import main
from privacy.errors import ConfigurationError, IntegrityError
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.sealed_parts import joint, part_file, read_part


def partition(number, parts=2):
    return {"partition": {"scheme": "by-hash", "parts": parts, "part": number}}


def release(folder, **changes):
    return made.release_without_engine(made.write_site(folder, **changes))


def pooled(capsys, *words):
    assert main(["pool", *map(str, words), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return json.loads((Path(answer["bundle"]) / "manifest.json").read_text()), answer


@pytest.mark.parametrize("method", [made.SMALL_CLUSTMIX, made.NAIVE_BAYES], ids=lambda m: m["kind"])
def test_parts_of_a_partition_have_the_guarantee_of_the_largest_and_charge_nothing(
    installation, capsys, method
):
    main(["check", str(made.write_site(installation, privacy_unit=partition(0, 3)))])
    parts = [release(installation, method=method, privacy_unit=partition(n)) for n in (0, 1)]
    capsys.readouterr()
    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    history = ledger.history()
    manifest, answer = pooled(capsys, *(part.release_id for part in parts), "--rows", "500")
    assert ledger.history() == history
    assert answer["epsilon"] == parts[0].epsilon
    assert manifest["corrected_after_checks"] == 1
    assert "in part 0 of 2 of the split by-hash" in manifest["privacy_unit"]
    assert manifest["privacy_unit"].endswith("one of 2 parts")
    assert [part["release_id"] for part in manifest["pooled"]] == [p.release_id for p in parts]
    [key] = (installation / "home").rglob("pipeline.pub")
    bundle = verify(answer["bundle"], keys=[key])
    assert len(bundle.rows()) == 500
    card = (Path(answer["bundle"]) / "data_card.md").read_text()
    assert "Nothing was charged: it pools what was paid for by its parts, made-up/r-" in card
    # The next release of the same table finds nothing missing in the ledger.
    assert release(installation, method=method, privacy_unit=partition(1)).reused


@pytest.mark.parametrize("by", ["hash", "entry"])
def test_each_release_has_a_pool_of_the_last_parts_and_falls_with_any_of_them(
    installation, person, tmp_path, capsys, by
):
    cohort, periods = made.made_up_cohort(), [f"2025-0{month}" for month in (1, 2, 3)]
    number = cohort["patient"].str[-2:].where(cohort["patient"].str[0] == "P", "0").astype(int) % 3
    cohort["admitted"] = number.map(dict(enumerate(f"{period}-15" for period in periods)))
    entry = {"partition": {"by": "entry", "column": "admitted", "every": "month"}}
    outcomes, asked = [], {"cohort": cohort, "publish": {"pool": {"last": 2}}}
    schema = {**made.SCHEMA, "ignore": ["note", *(["admitted"] if by == "hash" else [])]}
    for part, period in enumerate(periods):
        unit, more = (partition(part, 3), {}) if by == "hash" else (entry, {"period": period})
        path = made.write_site(installation, privacy_unit=unit, schema=schema, **asked)
        outcomes.append(made.release_without_engine(path, **more))
        again = made.release_without_engine(path, **more)
        assert (again.reused, again.pool) == (True, outcomes[-1].pool)
    history = LedgerDatabase(installation / "home" / "ledger.sqlite").history()
    assert {row.release_id for row in history} == {one.release_id for one in outcomes}
    pools = [one.pool for one in outcomes]
    assert pools[0] is None
    for pool, parts in ((pools[1], outcomes[:2]), (pools[2], outcomes[1:])):
        manifest = json.loads((Path(pool) / "manifest.json").read_text())
        assert [p["release_id"] for p in manifest["pooled"]] == [one.release_id for one in parts]
        assert manifest["epsilon"] == pytest.approx(outcomes[0].epsilon)
    person("ada", is_officer=True)
    words = ["--key", str(tmp_path / "people" / "ada.key"), "--reason", "wrong extract", "--json"]
    assert main(["revoke", outcomes[0].release_id, *words]) == 0
    assert pools[1] in json.loads(capsys.readouterr().out)["bundles"]
    assert main(["verify", pools[1], "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "RELEASE_REVOKED"
    assert main(["verify", pools[2], "--json"]) == 0
    capsys.readouterr()
    assert main(["pool", *(one.release_id for one in outcomes), "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "NOT_PUBLISHED"
    assert f"{outcomes[0].release_id} revoked" in answer["message"]


@pytest.mark.parametrize("change", [{"privacy_unit": {}}, {"method": {"kind": "dp_kmeans"}}])
def test_a_pool_of_what_does_not_add_up_is_refused(installation, change):
    asked = {"privacy_unit": partition(0), "publish": {"pool": {"last": 2}}, **change}
    with pytest.raises(ConfigurationError, match=r"publish\.pool"):
        release(installation, **asked)


@pytest.fixture
def hospitals(tmp_path, monkeypatch, capsys):
    """Three hospitals, each with a release of its own; the last one pools."""
    made_of = {}
    for content, name in enumerate(("north", "south", "west")):
        folder = tmp_path / name
        folder.mkdir()
        made.install(monkeypatch, folder)
        site = made.write_site(folder, dataset=name, cohort=made.made_up_cohort(content))
        outcome, file = made.release_without_engine(site), tmp_path / f"{name}.part"
        assert main(["export", outcome.release_id, "--to", str(file)]) == 0
        [key] = (folder / "home").rglob("pipeline.pub")
        shutil.copy(key, tmp_path / f"{name}.pub")
        made_of[name] = (outcome, file, tmp_path / f"{name}.pub")
    capsys.readouterr()
    return made_of


def test_hospitals_pool_what_they_exported_and_share_no_row(hospitals, tmp_path, capsys):
    own, files = hospitals["west"][0], [hospitals[name][1] for name in ("north", "south")]
    keys = [hospitals[name][2] for name in ("north", "south")]
    words = [own.release_id, *files, *(word for key in keys for word in ("--key", key))]
    manifest, answer = pooled(capsys, *words)
    assert answer["epsilon"] == own.epsilon
    assert "on the assumption that no patient is in two hospitals" in manifest["privacy_unit"]
    verify(answer["bundle"], keys=[*keys, hospitals["west"][2]])
    with pytest.raises(IntegrityError, match=r"SIGNER_UNKNOWN: file part\.json"):
        verify(answer["bundle"], keys=[hospitals["west"][2]])
    for content in (path.read_bytes() for path in files):
        assert not any(canary in content for canary in made.CANARIES)
        assert str(tmp_path).encode() not in content  # no place of the table


def test_files_of_others_are_refused_unless_signed_by_a_known_key(hospitals, tmp_path, capsys):
    own, (_, file, key) = hospitals["west"][0], hospitals["north"]

    def refused(path, *more):
        assert main(["pool", own.release_id, str(path), *map(str, more), "--json"]) != 0
        return json.loads(capsys.readouterr().out)["error"]

    assert refused(file) == "SIGNER_UNKNOWN"
    assert refused(file, "--key", hospitals["south"][2]) == "SIGNER_UNKNOWN"
    content, hostile = file.read_bytes(), tmp_path / "hostile.part"
    changed = content.replace(b'"tainted":false', b'"tainted":true')
    wrong = {"SIGNATURE_WRONG": [changed], "PART_INVALID": [content[:-1], b"", b"PK", b"x" * 100]}
    for code, contents in wrong.items():
        for each in contents:
            hostile.write_bytes(each)
            assert refused(hostile, "--key", key) == code
    assert refused(own.release_id) == "PARTS_OVERLAP"


def test_arrays_of_another_shape_are_refused_even_if_signed(hospitals, tmp_path, capsys):
    own, file, _ = hospitals["west"]
    [private] = (tmp_path / "west" / "home").rglob("pipeline.key")
    part, arrays = read_part(file.read_bytes(), [SigningKey.read(private).public])
    facts = part.model_dump(exclude={"arrays", "key_id", "signature", "format_version"})
    facts |= {"release_id": "r-20250101-0f3a9c21", "cohort": "other"}
    with pytest.raises(IntegrityError, match="PARTS_OVERLAP"):  # as signed by a former key
        joint([part, part.model_copy(update={"key_id": "0" * 16, "cohort": "other"})])
    facts["ledger_entry"] = "e-0123456789abcdef"
    other = np.array(json.dumps({**json.loads(str(arrays["declared"])), "delta": 0.1}))
    for changes in ({"mu": np.array([1.0])}, {"declared": other}):
        content = part_file(SigningKey.read(private), {**arrays, **changes}, **facts)
        (tmp_path / "other.part").write_bytes(content)
        assert main(["pool", own.release_id, str(tmp_path / "other.part"), "--json"]) != 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["error"] == ("PART_INVALID" if "mu" in changes else "PARTS_DIFFER")
    assert "delta differs" in answer["message"]


def test_a_pool_of_an_unknown_release_or_of_one_part_is_refused(hospitals, capsys):
    assert main(["pool", "r-20250101-0f3a9c21", hospitals["west"][0].release_id, "--json"]) != 0
    assert json.loads(capsys.readouterr().out)["error"] == "RELEASE_UNKNOWN"
    assert main(["pool", hospitals["west"][0].release_id, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "PARTS_MISSING"


def test_a_quantity_of_a_release_is_estimated_with_its_interval_or_refused(installation, capsys):
    outcome = release(installation, method=made.SMALL_CLUSTMIX, privacy={"epsilon": 5.0})
    words = [outcome.release_id, "odds_ratio", "died=yes", "--by", "smoker=y", "--against", "n"]
    assert main(["estimate", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.0 < found["low"] < found["estimate"] < found["high"]
    assert main(["estimate", outcome.release_id, "coefficient", "age", "--json"]) == 2
    assert "no interval covers" in json.loads(capsys.readouterr().out)["message"]


def test_rows_of_other_draws_are_a_file_of_a_signed_resample(installation, capsys):
    outcome = release(installation, method=made.NAIVE_BAYES)
    history = LedgerDatabase(installation / "home" / "ledger.sqlite").history()
    words = [outcome.release_id, "--draws", "3", "--rows", "400"]
    assert main(["resample", *words, "--json"]) == 0
    bundle = Path(json.loads(capsys.readouterr().out)["bundle"])
    assert LedgerDatabase(installation / "home" / "ledger.sqlite").history() == history
    draws = pd.read_parquet(bundle / "draws.parquet")
    assert (
        draws.columns.tolist()[1:] == pd.read_parquet(bundle / "synthetic.parquet").columns.tolist()
    )
    assert draws.groupby("noise_draw").size().to_dict() == {1: 400, 2: 400, 3: 400}
    assert draws.groupby("noise_draw")["age"].mean().nunique() == 3
    assert main(["verify", str(bundle), "--json"]) == 0
    card = (bundle / "data_card.md").read_text()
    assert "as it would over other releases" in card
    assert "To cite a figure, give its interval" in card
