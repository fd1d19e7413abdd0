"""Labels together: codes there and back, conditions on one of them, against loops over all."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from storage.schema.labels import Label, Labels
from storage.schema.table import TableSchema

names = st.lists(st.integers(2, 4), min_size=1, max_size=2)


def made(sizes):
    return [
        Label(name=f"l{i}", levels={f"{i}{k}": () for k in range(size)})
        for i, size in enumerate(sizes)
    ]


@given(sizes=names, seed=st.integers(0, 99))
def test_codes_together_have_the_levels_of_each(sizes, seed):
    labels, rng = Labels(made(sizes)), np.random.default_rng(seed)
    own = [rng.integers(-2, size, size=30, dtype=np.int32) for size in sizes]
    combinations = [*product(*map(range, sizes))]
    together = labels.joined(own)
    for row, code in enumerate(together):
        parts = tuple(int(codes[row]) for codes in own)
        assert (code < 0) == (min(parts) < 0)
        assert code < 0 or combinations[code] == parts
    known = together[together >= 0]
    columns = labels.columns(known)
    for name, levels in labels.parts.items():
        assert columns[name].tolist() == [levels[code] for code in known]
    place = int(rng.integers(len(sizes)))
    asked = labels.asked(f"l{place}", f"{place}1")
    assert asked.tolist() == [parts[place] == 1 for parts in combinations]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"more_labels": made([2])}, "expected each column once in columns, labels and ignore"),
        ({"more_labels": made([2, 4, 4])[1:]}, None),
        ({"more_labels": made([2, 26])[1:]}, "expected labels of 50 levels or fewer together"),
        (
            {
                "more_labels": [
                    {
                        "name": "b",
                        "levels": [{"name": name, "values": []} for name in ("z", "y, b=z")],
                    }
                ],
                "label": {"name": "a", "levels": {"x": [], "x, b=y": []}},
            },
            "distinguish combinations of",
        ),
        (
            {
                "more_labels": made([2, 2])[1:],
                "columns": [{"name": "l0, l1", "kind": "categorical", "levels": ["a", "b"]}],
            },
            "and no column 'l0, l1'",
        ),
        ({"more_labels": made([2, 2])[1:], "image": {"height": 2, "width": 2}}, "of an image"),
    ],
)
def test_labels_are_declared_once_and_have_few_levels_together(declared, message):
    (first,) = made([2])
    columns = [{"name": "x", "kind": "categorical", "levels": ["a", "b"]}]
    whole = ({} if "image" in declared else {"columns": columns}) | {"label": first} | declared
    if message is None:
        assert len(TableSchema.model_validate(whole).labels.level_names) == 32
    else:
        with pytest.raises(ValidationError, match=message):
            TableSchema.model_validate(whole)
