"""The commands of ``clustmix`` as they are declared, and their words without what they do."""

from typer.main import get_command

from flows.cli.app import app


def leaves(command=None, above=""):
    """Names and commands, those below ``ledger`` and ``server`` with these words."""
    command = get_command(app) if command is None else command
    below = getattr(command, "commands", None)
    if below is None:
        yield above.strip(), command
    for name, one in (below or {}).items():
        yield from leaves(one, f"{above} {name}")


def parse(words):
    """Read the words after ``clustmix``, which raises what is wrong with them, and do nothing."""
    command = get_command(app)
    for _, leaf in leaves(command):
        leaf.callback = None
    with command.make_context("clustmix", list(words)) as context:
        command.invoke(context)
