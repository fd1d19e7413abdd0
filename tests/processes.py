"""Processes of their own, for what only they can show."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python(*arguments, check=False, **options):
    command = [sys.executable, *map(str, arguments)]
    usual = {"capture_output": True, "text": True}
    return subprocess.run(command, check=check, **{**usual, **options})


def at_once(program, *arguments, n, **variables):
    """Run a program in several processes that wait for each other; return what each of them says.

    The program says ``ready``, reads its standard input to the end, and then does its work.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(n)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    said = []
    for child in children:
        child.stdin.close()
    for child in children:
        with child:
            said.append(child.stdout.read())
        assert child.returncode == 0
    return said
