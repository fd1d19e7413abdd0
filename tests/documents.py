"""What the tests of documents and of files of a deployment read in the same way."""

import importlib.util
import re

from packaging.utils import canonicalize_name


def blocks(text, language):
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, flags=re.M | re.S)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in found]


def table_after(text, heading):
    """Return the cells of the first Markdown table after a heading, its head left out."""
    block = re.search(r"^\|.*?(?=\n\n|\Z)", text.split(heading, 1)[1], flags=re.M | re.S).group()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    return [[cell.strip(" |") for cell in row] for row in rows[2:]]


def module_at(path):
    spec = importlib.util.spec_from_file_location(f"clustmix_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked_in(text):
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", text, flags=re.M)
    return {canonicalize_name(name): version for name, version in found}
