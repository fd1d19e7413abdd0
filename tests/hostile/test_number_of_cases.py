"""How many cases the tests of this folder try: at least ten thousand."""

import ast
from pathlib import Path

AT_LEAST = 10_000


def max_examples(function: ast.FunctionDef) -> int | None:
    """Return the number of cases of a property-based test, which its settings have to say."""
    calls = {
        ast.unparse(one.func): one for one in function.decorator_list if isinstance(one, ast.Call)
    }
    if "given" not in calls:
        return None
    assert "settings" in calls, f"{function.name}: say how many cases"
    stated = {word.arg: ast.literal_eval(word.value) for word in calls["settings"].keywords}
    return int(stated["max_examples"])


def test_there_are_enough_cases() -> None:
    numbers = {
        f"{path.name}:{node.name}": number
        for path in Path(__file__).parent.glob("test_hostile_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and (number := max_examples(node)) is not None
    }
    assert len(numbers) >= 30
    assert sum(numbers.values()) >= AT_LEAST, numbers
