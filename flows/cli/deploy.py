"""What the command ``clustmix deploy`` does; it returns its exit code."""

from __future__ import annotations

import argparse

from flows.cli import terminal


def deploy(options: argparse.Namespace) -> int:
    """Tell the server of PREFECT_API_URL what the files declare."""
    from flows.server.parts import join_server
    from storage.settings import load_settings
    from tasks.execution.runtime import configure_prefect

    settings = load_settings()
    join_server(settings)
    configure_prefect(settings)
    from flows.operations import deploy as deployments

    deployed = deployments.deploy(settings, options.file)
    if options.json:
        terminal.print_json(deployed.as_json())
        return 0
    terminal.paragraph("Serves", ", ".join(deployed.deployments))
    terminal.paragraph("Watches", ", ".join(deployed.automations))
    if deployed.removed:
        terminal.paragraph("Removed", ", ".join(deployed.removed))
    if not deployed.notifies:
        terminal.line("Nobody is notified: CLUSTMIX_NOTIFY_URL is not set.")
    return 0
