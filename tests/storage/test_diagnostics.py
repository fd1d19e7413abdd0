import json
import stat

import pytest

from privacy.errors import ConfigurationError
from storage.files.diagnostics import MAX_ROWS_PER_RULE, DiagnosticsFile


def test_values_are_in_the_file_and_not_in_the_pointer(tmp_path):
    path = tmp_path / "diagnostics" / "r-20250131-0f3a9c21.jsonl"
    diagnostics = DiagnosticsFile(path)
    path.touch()
    path.chmod(0o644)  # is closed
    pointer = diagnostics.add("age", "IN_RANGE", [4, 9], ["SECRET-1", None])
    diagnostics.add("sex", "KNOWN_LEVEL", range(5_000), ["SECRET-2"] * 5_000)
    assert pointer == "r-20250131-0f3a9c21.jsonl"
    assert "SECRET" not in repr(diagnostics)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {
        "column": "age",
        "rule": "IN_RANGE",
        "rows": [{"row": 4, "value": "SECRET-1"}, {"row": 9, "value": "None"}],
    }
    assert (lines[1]["column"], len(lines[1]["rows"])) == ("sex", MAX_ROWS_PER_RULE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_links_malformed_names_and_open_folders_are_refused(tmp_path):
    folder = tmp_path / "private"
    diagnostics = DiagnosticsFile(folder / "d.jsonl")
    (folder / "d.jsonl").symlink_to(tmp_path / "readable")
    with pytest.raises(OSError, match="symbolic"):
        diagnostics.add("age", "IN_RANGE", [0], ["SECRET"])
    assert not (tmp_path / "readable").exists()
    folder.chmod(0o755)
    for name, code in ((".hidden", "INVALID_FILE_NAME"), ("d.jsonl", "DIRECTORY_MODE")):
        with pytest.raises(ConfigurationError, match=code):
            DiagnosticsFile(folder / name)
