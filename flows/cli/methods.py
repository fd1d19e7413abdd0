"""The command that lists the methods a site file can name."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from flows.cli import terminal


def methods(options: argparse.Namespace) -> int:
    """List every method: its paper, its guarantee, its data kinds and its settings."""
    from tasks.synthesizers.registry import METHODS

    if options.json:
        terminal.print_json([method_facts(entry) for entry in METHODS])
        return 0
    for entry in METHODS:
        facts = method_facts(entry)
        terminal.line(f"{facts['kind']}: {facts['title']}")
        for title, text in (
            ("Source", facts["source"]),
            ("Guarantee", facts["guarantee"]),
            ("Forms", ", ".join(facts["analyses"])),
            ("Data", ", ".join(facts["data_kinds"])),
            ("Settings", ", ".join(facts["settings"]) or "none"),
        ):
            terminal.line(
                textwrap.fill(
                    text,
                    terminal.WIDTH,
                    initial_indent=f"  {title + ':':<11}",
                    subsequent_indent=" " * 13,
                    break_on_hyphens=False,
                )
            )
    return 0


def method_facts(entry: Any) -> dict[str, Any]:
    """Return what is public about a method, in the form of the JSON answer.

    Parameters
    ----------
    entry : MethodEntry
        Entry of the registry.
    """
    schema = entry.config.model_json_schema(mode="validation")
    forms = (("proven", entry.proven), ("published", entry.paper))
    return {
        "kind": entry.kind,
        "title": entry.title,
        "source": entry.source,
        "guarantee": entry.guarantee.value,
        "analyses": [name for name, form in forms if form is not None],
        "data_kinds": [kind.value for kind in entry.data_kinds],
        "settings": {
            name: {
                key: value
                for key, value in setting.items()
                if key in ("description", "default", "type", "minimum", "maximum", "enum")
            }
            for name, setting in schema["properties"].items()
            if name != "kind"
        },
    }
