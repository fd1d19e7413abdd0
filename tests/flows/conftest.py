import shutil

import desks
import made_up_release as made
import pytest
from stores import Stores

from tasks.execution import runtime
from tasks.methods.clustmix import table_clustmix


@pytest.fixture(scope="session", autouse=True)
def logging_of_prefect():
    """Let Prefect replace the logging handlers while the streams are those of the session.

    It closes every handler of the process when it starts its first run, and that of absl, which
    comes with jax, then closes its stream unless it is the present ``sys.stderr``. Within a test
    that captures the streams, it is not: pytest would lose its own.
    """
    from prefect.logging.configuration import setup_logging

    setup_logging()


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A folder with an installation in which nothing has happened yet."""
    made.install(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def site(installation):
    return Stores()


@pytest.fixture(scope="session")
def released_once(tmp_path_factory):
    """The folder of an installation after the release of its `site.yaml`; never changed."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch, folder)
        made.release_without_engine(made.write_site(folder))
    return folder


@pytest.fixture
def after_a_release(released_once, tmp_path, monkeypatch):
    shutil.copytree(released_once, tmp_path, dirs_exist_ok=True)
    made.install(monkeypatch, tmp_path)
    made.write_site(tmp_path)
    return tmp_path


@pytest.fixture
def released(after_a_release):
    [entry] = Stores().ledger.entries()
    return entry


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    """A desk whose releases lie in the folder `releases` beside its site file."""
    desks.set_environment(monkeypatch, tmp_path / "releases")
    monkeypatch.chdir(tmp_path)
    return desks.Desk(tmp_path, capsys)


@pytest.fixture
def quick(monkeypatch):
    """Let ClustMix compute less after its draws."""
    effort = table_clustmix.Effort(starts=1, steps=60, fit_rows=2_000)
    monkeypatch.setattr(table_clustmix.TableClustMix.__init__, "__defaults__", (effort, None))


@pytest.fixture
def before_the_flow(monkeypatch):
    """Let nothing past the point where the orchestrator would be started."""

    def started(settings):
        raise AssertionError("the orchestrator was started")

    monkeypatch.setattr(runtime, "configure_prefect", started)


@pytest.fixture
def person(tmp_path):
    def make(name, *, is_officer=False):
        officers = None
        if is_officer:
            site = Stores()
            site.keys.pipeline()
            officers = site.settings.key_folder / "officers"
        return made.make_person(tmp_path / "people", name, officers=officers)

    return make
