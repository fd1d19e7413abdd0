"""One job of the benchmarks: a command whose last line is one row."""

from dataclasses import dataclass

ROW_LIMIT_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    A process of its own that prints one row.

    Parameters
    ----------
    suite : str
        Name of the suite, which is the name of its module and of its file of rows.
    command : tuple of str
        The words that follow `python -m`.
    limit_seconds : int
        Past this the process is ended, and its row has the outcome `did not end`.
    """

    suite: str
    command: tuple[str, ...]
    limit_seconds: int = ROW_LIMIT_SECONDS

    @property
    def words(self) -> str:
        """The command as typed, which names the job's row."""
        return " ".join(("python", "-m", *self.command))
