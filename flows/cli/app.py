"""All commands of ``clustmix`` in the order of its help, and the text above and below them.

Each is one function: its parameters are the options, its docstring is the help. Heavy imports are
made in the functions, so that help and completion are answered at once.
"""

from importlib import resources
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.cli import audit, ledger, officers, operations, plan, publishing, releasing, server, site
from flows.cli.options import EXIT_CODES

_HELP = resources.files(__package__).joinpath("help.txt").read_text("utf-8")
# Typer keeps the line breaks of a text after this sign.
EXAMPLES, ENVIRONMENT = (f"\b\n{part}" for part in _HELP.strip().split("\n\n"))

GROUPS = {
    "Start": ("init", "methods", "plan", "check", "completion"),
    "Release": ("release", "publish", "resample", "verify", "export", "pool", "estimate"),
    "Officer": ("keygen", "approve", "sign", "revoke"),
    "Operate": ("server", "status", "ready", "deploy", "watch", "doctor", "certificates"),
    "Audit": ("ledger", "audit"),
}
"""Commands in the order of the help, by heading."""


class _Grouped(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below their headings."""
        for heading, names in GROUPS.items():
            rows = [(f"{n:<12}", self.commands[n].get_short_help_str(62)) for n in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Grouped,
    epilog="\n\n".join((EXAMPLES, EXIT_CODES, ENVIRONMENT)),
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,  # plain help is answered at once, and a bracket in it is a bracket
    pretty_exceptions_enable=False,  # they print local variables
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"clustmix {version('clustmix')}")
        raise typer.Exit


@app.callback()
def clustmix(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Make synthetic training tables from private tables under differential privacy.

    A site file (YAML) declares the table and the guarantee, a release publishes a bundle of
    synthetic rows, and a ledger keeps what each dataset has spent of its budget.
    """


for commands in (site, plan, releasing, publishing, officers, ledger, server, operations, audit):
    app.add_typer(commands.app)
