import pickle
import warnings
from traceback import walk_tb

import pytest
from shard_functions import CANARY

from privacy.errors import BudgetRefused, ClustMixError, ConfigurationError
from storage.settings import Settings
from tasks.execution import runtime
from tasks.execution.runtime import (
    PRIVATE_LOG_NAME,
    Failed,
    PipelineError,
    configure_prefect,
    guarded_task,
    private_log,
    private_log_directory,
)


def fail_with_canary(row, *, refusal=None):
    try:
        raise KeyError(row)
    except KeyError as error:
        failure = refusal or ValueError(f"bad value in {row}")
        failure.add_note(row)
        raise failure from error


def warn_with_canary(row):
    warnings.warn(f"not converged at {row}", RuntimeWarning, stacklevel=1)
    return "done"


def links_of(error):
    return [error.__context__, error.__cause__, getattr(error, "__notes__", None)]


def test_a_private_failure_leaves_step_and_type(tmp_path):
    task = guarded_task("encode")(fail_with_canary)
    with private_log_directory(tmp_path / "log"), pytest.raises(PipelineError) as caught:
        task.fn(CANARY)
    expected = "encode:ValueError: the step stopped; the private log of this run has the traceback"
    assert str(caught.value) == expected
    assert links_of(caught.value) == [None, None, None]
    # A traceback keeps the local variables of its frames alive, rows among them.
    frames = [frame.f_code.co_name for frame, _ in walk_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["run", "unwrapped"]
    assert "fail_with_canary" not in frames
    log = tmp_path / "log" / PRIVATE_LOG_NAME
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text(encoding="utf-8")
    assert f"ValueError: bad value in {CANARY}" in text
    assert f"KeyError: '{CANARY}'" in text


def test_a_public_failure_leaves_as_it_is_without_its_history():
    refusal = BudgetRefused("BUDGET_EXCEEDED", "no release like this one is left")
    with pytest.raises(BudgetRefused) as caught:
        guarded_task("fail_with_canary")(fail_with_canary).fn(CANARY, refusal=refusal)
    assert str(caught.value) == "BUDGET_EXCEEDED: no release like this one is left"
    assert caught.value.exit_code == 3
    assert links_of(caught.value) == [None, None, None]


def test_a_task_is_never_cached_persisted_or_tried_again():
    from prefect.cache_policies import NO_CACHE

    task = guarded_task("noise")(fail_with_canary)
    assert (task.persist_result, task.cache_policy, task.retries) == (False, NO_CACHE, 0)
    assert (task.log_prints, task.name) == (False, "noise")


def test_warnings_of_a_step_go_to_the_private_log(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with private_log_directory(tmp_path / "log"):
            assert guarded_task("warn_with_canary")(warn_with_canary).fn(CANARY) == "done"
    text = (tmp_path / "log" / PRIVATE_LOG_NAME).read_text(encoding="utf-8")
    assert f"warn_with_canary\nRuntimeWarning: not converged at {CANARY}" in text
    assert CANARY not in "".join(capfd.readouterr())


def test_log_directories_nest_and_must_be_closed_to_others(tmp_path, capfd):
    private_log("step", CANARY)  # dropped: there is none
    assert "".join(capfd.readouterr()) == ""
    with private_log_directory(tmp_path / "outer"):
        with private_log_directory(tmp_path / "inner"):
            assert runtime._private_directory.get() == tmp_path / "inner"
        assert runtime._private_directory.get() == tmp_path / "outer"
    assert runtime._private_directory.get() is None
    (tmp_path / "outer").chmod(0o755)
    with (
        pytest.raises(ConfigurationError, match="DIRECTORY_MODE"),
        private_log_directory(tmp_path / "outer"),
    ):
        pass


def test_configuration_is_silent_and_its_home_is_closed(without_prefect, tmp_path):
    configure_prefect(Settings(home=tmp_path / "home"))
    assert without_prefect["PREFECT_HOME"] == str(tmp_path / "home" / "prefect")
    assert (tmp_path / "home" / "prefect").stat().st_mode & 0o777 == 0o700
    assert without_prefect["DO_NOT_TRACK"] == "1"
    assert without_prefect["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert without_prefect["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] == "false"


def test_configuration_leaves_a_named_server_to_its_operators(without_prefect, tmp_path):
    without_prefect["PREFECT_API_URL"] = "http://orchestrator.example:4200/api"
    without_prefect["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] = "true"
    configure_prefect(Settings(home=tmp_path / "home"))
    assert "PREFECT_HOME" not in without_prefect
    assert "PREFECT_LOGGING_LEVEL" not in without_prefect
    assert without_prefect["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] == "false"
    assert not (tmp_path / "home").exists()


def test_configuration_after_prefect_is_refused(tmp_path):
    import prefect  # noqa: F401

    with pytest.raises(ConfigurationError, match="PREFECT_ALREADY_IMPORTED: expected Prefect not"):
        configure_prefect(Settings(home=tmp_path / "home"))


def test_every_error_and_its_public_part_survive_pickle():
    for error_class in (PipelineError, *ClustMixError.__subclasses__()):
        failed = Failed(error_class=error_class, code="CODE", message="message")
        travelled = pickle.loads(pickle.dumps(failed))  # noqa: S301
        error = pickle.loads(pickle.dumps(travelled.error()))  # noqa: S301
        assert (type(error), str(error)) == (error_class, "CODE: message")
