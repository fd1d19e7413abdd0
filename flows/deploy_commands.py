"""What the command ``clustmix deploy`` does; it returns its exit code."""

from __future__ import annotations

import argparse

from flows import terminal


def deploy(options: argparse.Namespace) -> int:
    """Tell the server of PREFECT_API_URL what the files declare."""
    from storage.settings import load_settings
    from tasks.runtime import configure_prefect
    from tasks.server_parts import join_server

    settings = load_settings()
    join_server(settings)
    configure_prefect(settings)
    from flows import deploy as deployments

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
