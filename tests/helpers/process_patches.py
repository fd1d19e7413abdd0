"""What the Python processes of a whole installation do differently in tests.

They write down what they draw, before anybody sees it; they wait after a draw where a test holds
them; they try an arrival again sooner whose run has failed; and where they ask which period has
ended, they take the date that a test has set.
Python imports ``sitecustomize`` when it starts; `variables` writes one that calls
`install`, wherever a process was started from: by a worker, by the command, or by hand.
"""

import json
import os
import time
from pathlib import Path

import wrapt

DRAWS = "E2E_DRAWS"
"""Variable with the folder of the draws: ``<release>.jsonl``, a line for each."""

HURRY = 60
"""How much sooner than usual an arrival is tried again."""

HOLD = "hold"
"""While this file is beside the folder of the draws, every process waits after each draw."""

TODAY = "today"
"""File beside it with the date by which periods end."""

HELD = "held"
"""Folder beside it, with a file for each release that waits."""


def variables(folder):
    """Return the variables that let every Python process record what it draws below a folder."""
    place, draws = folder / "patches", folder / "draws"
    for made in (place, draws):
        made.mkdir(parents=True)
    (place / "sitecustomize.py").write_text("import process_patches\n\nprocess_patches.install()\n")
    places = [str(place), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {DRAWS: str(draws), "PYTHONPATH": os.pathsep.join(filter(None, places))}


def record_draws(curator):
    """Put every draw on disk before anybody sees it, in a file of its run."""
    from privacy.events import event_to_dict
    from tasks.execution import runtime

    mechanism, folder = curator.discrete_gaussian_mechanism, Path(os.environ[DRAWS])

    def draw(*arguments, **options):
        noisy = mechanism(*arguments, **options)
        log = runtime._private_directory.get()
        name = f"process-{os.getpid()}" if log is None else log.name  # a run logs as its release
        with (folder / f"{name}.jsonl").open("a") as handle:
            handle.write(json.dumps(event_to_dict(noisy.event)) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        _wait(folder.parent, name)
        return noisy

    curator.discrete_gaussian_mechanism = draw


def _wait(folder, name):
    hold = folder / HOLD
    if hold.exists():
        (folder / HELD).mkdir(exist_ok=True)
        (folder / HELD / name).touch()
        while hold.exists():
            time.sleep(0.05)


def _hurry(arrivals):
    """Let what is tried again after minutes and hours be tried after seconds and minutes."""
    arrivals._RETRY_AFTER = tuple(delay / HURRY for delay in arrivals._RETRY_AFTER)


def _set_date(request):
    """Let the last period be that of the date in the file, if there is one."""
    import datetime

    today = Path(os.environ[DRAWS]).with_name(TODAY)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            if not today.exists():
                return super().now(tz)
            return cls.fromisoformat(today.read_text()).replace(tzinfo=tz)

    request.datetime = Clock


def install():
    """Patch the modules in question when they are imported."""
    if DRAWS in os.environ:
        wrapt.register_post_import_hook(_hurry, "storage.arrivals.arrival_store")
        wrapt.register_post_import_hook(_set_date, "flows.site.request")
        wrapt.register_post_import_hook(record_draws, "tasks.measurement.curator")
