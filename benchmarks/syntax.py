"""Reading of Python syntax trees: imports, functions, parameters and the names in types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports, anywhere in it: modules, and names of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function of a tree, methods and functions inside functions included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def positional(function: Function) -> list[ast.arg]:
    """Return the parameters that a caller may give by position, without self and cls."""
    arguments = (*function.args.posonlyargs, *function.args.args)
    return [each for each in arguments if each.arg not in ("self", "cls")]


def parameters(function: Function) -> Iterator[ast.arg]:
    """Yield all parameters of a function."""
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None)


def names_in(annotation: ast.expr | None) -> set[str]:
    """Return the last part of every name in a type, written as text or not."""
    if annotation is None:
        return set()
    names = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= _names_in_text(node.value)
    return names


def _names_in_text(text: str) -> set[str]:
    try:
        return names_in(ast.parse(text, mode="eval").body)
    except SyntaxError:  # the text of an annotation, not a type
        return set()


def shown_types(node: ast.ClassDef) -> set[str]:
    """Return the types of a class's public fields and properties."""
    types = set[str]()
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if not member.target.id.startswith("_"):
                types |= names_in(member.annotation)
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            if any(
                name.endswith("property") for d in member.decorator_list for name in names_in(d)
            ):
                types |= names_in(member.returns)
    return types
