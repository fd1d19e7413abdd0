"""All commands of ``clustmix`` in the order of its help, and what that help says above and below.

A command is declared where it is carried out: its options are the parameters of its function, its
help is the docstring. Heavy imports are made in the functions, so that help is answered at once.
"""

from typing import Annotated

import typer

from flows.cli import audit, ledger, officers, operations, publication, release, server, site
from flows.cli.options import EXIT_CODES

EXAMPLES = """\b
examples:
  clustmix init cohort.csv --output cohort.yaml   then fill in cohort.yaml
  clustmix release cohort.yaml
  clustmix verify releases/cohort/r-20260131-0a1b2c3d
  clustmix ledger show"""

ENVIRONMENT = """\b
environment:
  CLUSTMIX_HOME          private folder: ledger, workspaces, diagnostics
                         (default .clustmix)
  CLUSTMIX_RELEASES      folder that bundles are published to (default
                         releases)
  CLUSTMIX_DATA_DIR      folder with copies of the public datasets
  CLUSTMIX_OFFLINE       true: never download a public dataset
  CLUSTMIX_DASK_WORKERS  worker processes; 0: this process alone (default: 2
                         for a table of more than 32 MiB, else 0)
  CLUSTMIX_DASK_ADDRESS  Dask scheduler to use instead of local workers
  CLUSTMIX_LEDGER_URL    postgresql:// address of a ledger that installations
                         share (default: a file in CLUSTMIX_HOME)
  CLUSTMIX_SITES         folder of site files, DATASET.yaml, for releases that
                         the orchestrator starts (default deployments/sites)
  CLUSTMIX_LANDING       folder or s3:// address where tables arrive
                         (default landing)
  CLUSTMIX_REQUESTER     key id in whose name the orchestrator asks
  CLUSTMIX_RELEASES_URL  address at which readers find the release store
  CLUSTMIX_NOTIFY_URL    webhook that is told of what a person should know
  PREFECT_API_URL        Prefect server to report to instead of a private one"""

app = typer.Typer(
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


for commands in (release, publication, server, operations, officers, ledger, audit, site):
    app.add_typer(commands.app)
