import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from unittest import mock

import desks
import made_up_release as made
import pytest
from command_line import leaves, parse
from desks import HOME

from flows.cli import main
from flows.cli.app import EXAMPLES, GROUPS
from flows.cli.site import COMPLETE
from privacy.errors import InputError
from storage.ledger.ledger_db import LedgerDatabase
from tests.processes import python

SITES = Path(__file__).parents[2] / "deployments" / "sites"
COMMANDS = dict(leaves())


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        desks.set_environment(patch, folder / "releases")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def bundle(environment):
    site = made.write_site(environment, dataset="cli-wards", rows=30)
    assert main(["release", str(site)]) == 0
    (found,) = (environment / "releases" / "cli-wards").iterdir()
    return found


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    return code, output, errors


def refused(capsys, *arguments, code=2):
    *found, errors = run(capsys, *arguments)
    assert found == [code, ""]
    return errors


@pytest.mark.parametrize("command", ["", *COMMANDS, "ledger", "server"])
def test_help_fits(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert command not in COMMANDS or "exit codes:" in text


def test_every_command_can_answer_programs_and_explains_itself():
    for name, command in COMMANDS.items():
        options = [option for parameter in command.params for option in parameter.opts]
        assert "--json" in options, name
        assert all(parameter.help for parameter in command.params), name
        assert len(command.help.splitlines()[0]) <= 80, name


def test_every_command_has_a_heading(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{heading}:\n") for heading in GROUPS]
    assert places == sorted(places)
    assert "\nMore:\n" not in text
    for name in {name.partition(" ")[0] for name in COMMANDS}:
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("shell", "variables", "found"),
    [
        ("bash", {"COMP_WORDS": "clustmix led", "COMP_CWORD": "1"}, "ledger"),
        ("bash", {"COMP_WORDS": "clustmix plan --simu", "COMP_CWORD": "2"}, "--simulate"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "clustmix server st"}, '"status"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "clustmix completion z"}, "zsh"),
    ],
)
def test_a_shell_completes_commands_and_options(shell, variables, found, capsys):
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE}=complete_{shell}" in capsys.readouterr().out
    asked = {COMPLETE: f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args", **variables}
    script = "import sys\nfrom flows.cli import main\ntry: main([])\nfinally: print({*sys.modules})"
    names, _, modules = python("-c", script, env={**os.environ, **asked}).stdout.partition("{")
    assert found in names
    # Typer draws the help of zsh and fish with rich.
    assert not re.search(r"'(numpy|sqlalchemy|prefect)'", modules)
    assert shell != "bash" or "'rich'" not in modules


def test_the_examples_of_the_help_parse():
    for line in EXAMPLES.splitlines()[2:]:
        parse(shlex.split(line.split("   then")[0])[1:])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Missing command (see clustmix --help)"),
        (["init"], "Missing argument 'TABLE' (see clustmix init --help)"),
        (["sign", "x"], "Missing option '--decision'. Choose from: approve, reject (see clustmix "),
    ],
)
def test_wrong_usage_is_one_line(arguments, line, capsys):
    errors = refused(capsys, *arguments)
    assert errors.startswith(f"clustmix: USAGE: {line}")
    assert errors.count("\n") == 1
    code, output, _ = run(capsys, *arguments, "--json")
    assert (code, json.loads(output)["error"]) == (2, "USAGE")


def test_a_release_shows_stages_guarantee_budget_and_bundle(environment, bundle, capsys):
    code, output, errors = run(capsys, "release", environment / "site.yaml", "--new-draw")
    assert code == 0
    lines = errors.splitlines()
    assert lines[0] == "Made-up wards"
    assert "epsilon 1, delta 1e-05 (add or remove one patient); 30 synthetic rows" in lines[1]
    stages = [line.split()[0] for line in lines if line.endswith(" s")]
    assert stages == [*made.STAGES_OF_NAIVE_BAYES]
    assert all(len(line) <= 80 for line in lines)
    assert output.startswith(
        "Guarantee:  epsilon 1, delta 0.00001 for any one patient; see --explain"
    )
    budget = r"charged epsilon 1; left: \d+ more releases? like this one"
    assert re.search(budget, " ".join(output.split()))
    (folder,) = re.findall(r"Bundle: +(\S+)", output)
    assert f"clustmix verify {folder}" in output
    code, output, _ = run(capsys, "verify", folder)
    assert code == 0
    assert "epsilon 1, delta 0.00001 for any one patient; see --explain\n" in output
    code, output, _ = run(capsys, "verify", folder, "--explain")
    assert "changes the probability of any outcome" in " ".join(output.split())


def test_the_fallback_is_used_where_public_data_are_absent_and_for_nothing_else(
    environment, bundle, tmp_path, monkeypatch, capsys
):
    def not_found(name, **options):
        raise InputError("DATA_UNAVAILABLE", "not here")

    monkeypatch.setattr("storage.sources.cohorts.find", not_found)
    adult, fallback = SITES / "adult.yaml", ("--fallback", environment / "site.yaml")
    code, output, errors = run(capsys, "release", adult, *fallback, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output)["dataset"] == "cli-wards"
    assert refused(capsys, "release", adult) == "clustmix: DATA_UNAVAILABLE: not here\n"
    broken = made.write_site(tmp_path)
    (tmp_path / "cohort.csv").unlink()
    errors = refused(capsys, "release", broken, *fallback)
    assert errors.startswith("clustmix: SOURCE_MISSING: ")


def test_what_nobody_expected_goes_to_the_private_log(environment, monkeypatch, capsys):
    broken = mock.Mock(side_effect=RuntimeError("zq7143"))
    monkeypatch.setattr("storage.releases.bundles.verify_bundle", broken)
    errors = refused(capsys, "verify", "x", code=1)
    log = HOME / "diagnostics" / "failures.log"
    assert errors == f"clustmix: UNEXPECTED: stopped by RuntimeError; {log} says where\n"
    assert "RuntimeError: zq7143" in log.read_text()
    broken.side_effect = KeyboardInterrupt
    stopped = "clustmix: STOPPED: stopped from the keyboard\n"
    assert refused(capsys, "verify", "x", code=1) == stopped


def test_a_good_ledger(bundle, capsys):
    output = run(capsys, "ledger", "show", "--cohort", "cli-wards")[1]
    assert re.match(r"cli-wards\n  [#.\u2588\u2591]{20} \d+ % left\n", output)
    assert f"  {bundle.name}  published        1  1e-05" in output
    code, output, _ = run(capsys, "ledger", "show", "--json")
    assert code == 0
    answer = json.loads(output)
    balance = LedgerDatabase(HOME / "ledger.sqlite").balance("cli-wards")
    assert answer["balances"]["cli-wards"]["remaining_rho"] == f"{balance.remaining_rho:f}"
    assert bundle.name in [entry["release_id"] for entry in answer["entries"]]
    sequence, head = LedgerDatabase(HOME / "ledger.sqlite").head()
    assert run(capsys, "ledger", "verify", "--head", f"{sequence}:{head}")[0] == 0
    errors = refused(capsys, "ledger", "verify", "--head", f"{sequence}:{'0' * 64}", code=1)
    assert errors.startswith("clustmix: LEDGER_ROLLED_BACK: ")
    errors = refused(capsys, "ledger", "verify", "--head", "latest")
    assert errors.startswith("clustmix: HEAD_INVALID: expected ROWS:HASH")


def test_a_bad_site_file_starts_no_orchestrator(tmp_path):
    site = made.write_site(tmp_path, cohort=made.made_up_cohort().drop(columns="ward"))
    probe = (
        "import sys; from flows.cli import main; code = main(); "
        "heavy = {'prefect', 'distributed', 'great_expectations', 'jax'} & set(sys.modules); "
        "sys.stdout.write(f'{code} {sorted(heavy)}')"
    )
    how = {"env": made.process_environment(tmp_path, dask_workers=0, COLUMNS="80"), "timeout": 200}
    done = python("-c", probe, "release", site, cwd=tmp_path, **how)
    assert done.stdout == "2 []"
    assert done.stderr.startswith("clustmix: HEADER_MISMATCH: expected the declared columns, ")
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_reader_that_stops_reading(tmp_path):
    made.write_site(tmp_path)
    code = "import sys; from flows.cli import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    pipes = {"stdout": writer, "stderr": subprocess.PIPE, "capture_output": False}
    done = python("-c", code, "init", tmp_path / "cohort.csv", timeout=100, **pipes)
    os.close(writer)
    assert done.stderr == ""
