"""Columns that are declared by a rule: pixels of images, items of sets, functions of others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt, model_validator

from storage.schema.columns import (
    MAX_CODES,
    CategoricalColumn,
    Column,
    Declaration,
    Finite,
    Level,
    Name,
    NumericColumn,
    did_you_mean,
    in_short,
    left_out,
    number_of,
)
from storage.schema.constraints import Constraint
from storage.schema.labels import as_entries, of_entries

MAX_SIDE = 64
"""Most rows and most columns of pixels of an image."""

LABEL_NAME = "label"
"""Name of the column of labels where no table names it."""

_BRIGHTEST = 255
_Side = Annotated[StrictInt, Field(ge=1, le=MAX_SIDE)]


class ImageColumns(Declaration):
    """Gray or colour images, one column of whole numbers from 0 to 255 for each pixel and channel.

    The columns are ``pixel_00_00``, ``pixel_00_01`` and so on: row, then column, from the top left;
    of colour images ``pixel_00_00_red``, ``..._green``, ``..._blue``. A released pixel is one of
    the levels, which are spread evenly from 0 (background) to 255.
    """

    height: _Side
    """Pixels of an image."""
    width: _Side
    """Pixels of an image."""
    channels: Literal[1, 3] = left_out(1)
    """1 for gray images, 3 for red, green and blue."""
    gray_levels: Annotated[StrictInt, Field(ge=2, le=256)] = 256
    """Levels of a channel: equal parts of the range."""
    threshold: Annotated[StrictInt, Field(ge=1, le=255)] | None = None
    """With two gray levels: the smallest value of a white pixel. Public, such as 128."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.threshold is not None and self.gray_levels != 2:
            raise ValueError("expected a threshold only with gray_levels: 2")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels."""
        return self.height, self.width, self.channels

    @property
    def columns(self) -> tuple[NumericColumn, ...]:
        """One column for each pixel and channel."""
        return _pixel_columns(self)

    @property
    def levels(self) -> tuple[int, ...]:
        """Released value of each code, from 0 to 255; each lies in the bin of its code."""
        return tuple(
            code * _BRIGHTEST // (self.gray_levels - 1) for code in range(self.gray_levels)
        )


def pixel_names(height: int, width: int, channels: int = 1) -> tuple[str, ...]:
    """Return the names of the columns of pixels: row by row, the channels of a pixel together."""
    colours = ("",) if channels == 1 else ("_red", "_green", "_blue")
    return tuple(
        f"pixel_{row:02d}_{column:02d}{colour}"
        for row in range(height)
        for column in range(width)
        for colour in colours
    )


def item_columns(names: tuple[str, ...]) -> tuple[CategoricalColumn, ...]:
    """Return a column with the levels 0 and 1 for each item; true and false are accepted."""
    return tuple(
        CategoricalColumn(
            kind="categorical",
            name=name,
            levels=("0", "1"),
            groups={"0": ("False", "false"), "1": ("True", "true")},
        )
        for name in names
    )


# Every gate and every worker reads the schema again.
@lru_cache(maxsize=8)
def _pixel_columns(image: ImageColumns) -> tuple[NumericColumn, ...]:
    bins: int | tuple[float, ...] = image.gray_levels
    if image.threshold is not None:
        bins = (0.0, float(image.threshold), _BRIGHTEST + 1.0)
    names = pixel_names(*image.shape)
    first = NumericColumn(kind="integer", name=names[0], lower=0, upper=_BRIGHTEST, bins=bins)
    return tuple(first.model_copy(update={"name": name}) for name in names)


class _Derived(Declaration):
    """A column that is a function of features by the codebook, in one of three forms.

    It is not measured, costs nothing and is exact in every released row, where it stands behind the
    features. The source may lack it. Constraints and ``--where`` cannot name it.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    of: Name | None = Field(default=None, alias="from", exclude_if=lambda value: value is None)
    """Column of which it is the class, or the value in ``map``."""
    edges: tuple[Finite, ...] | None = left_out()
    """First number of each class but the first; outer ends may be added."""
    levels: tuple[Level, ...] | None = left_out()
    """The classes, in order."""
    map: dict[Level, Level | None] | None = left_out()
    """Value, or ``null``, of each level or whole number of ``from``."""
    sum: Annotated[tuple[Name, ...], Field(min_length=1)] | None = left_out()
    """Columns whose numbers are added up."""
    missing_as: Level | None = left_out()
    """Value of a missing ``from``, or number of a missing part; else it is missing."""
    when_broken: Literal["refuse", "mend"] = left_out("refuse")
    """Refuse a source that breaks the rule, or mend it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = (self.of, self.edges, self.levels, self.map, self.sum)
        if "".join("-+"[one is not None] for one in named) not in ("+++--", "+--+-", "----+"):
            raise ValueError("expected from with edges and levels, from with map, or sum")
        edges, levels = self.edges or (), self.levels or ()
        if len(levels) == len(edges) - 1:
            edges = edges[1:-1]
            object.__setattr__(self, "edges", edges)
        if levels and (len(levels) != len(edges) + 1 or any(a >= b for a, b in pairwise(edges))):
            raise ValueError(
                f"expected increasing edges, as many as there are places between {len(levels)} "
                f"levels or both ends besides, found {len(self.edges or ())}"
            )
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that it is computed from."""
        return self.sum or (str(self.of),)

    @property
    def title(self) -> str:
        """The rule in words."""
        form = "sum" if self.sum else "class" if self.levels else "value by a map"
        return f"the {form} of {' + '.join(self.inputs)}"

    @property
    def about(self) -> str:
        """The released column in words: its rule with the classes or the map."""
        ends = ("below", *(f"from {edge:.10g}" for edge in self.edges or ()))
        values = {**(self.map or dict(zip(ends, self.levels or (), strict=False)))}
        values |= {"missing": self.missing_as} if self.missing_as else {}
        parts = [f"{key} = {value or 'missing'}" for key, value in values.items()]
        whole = f" ({in_short(parts, between='; ')})" * bool(parts)
        return f"computed as {self.title}{whole}, not measured"

    def sources(self, columns: Iterable[Column]) -> list[Column]:
        """Return the columns that it is computed from (ValueError)."""
        known = {column.name: column for column in columns}
        if stray := [name for name in self.inputs if name not in known]:
            hint = did_you_mean(stray[0], known)
            text = f"expected features, no label and no derived column, found {stray[0]}{hint}"
            raise ValueError(text)
        return [known[name] for name in self.inputs]

    def values(self, source: Column) -> tuple[str | None, ...]:
        """Return the value of each class, level or whole number, and last of a missing cell."""
        keys, mapped = _texts(source, every=self.map is not None), self.map or {}
        if self.levels is not None:
            _ends(keys)
        elif odd := sorted({*keys} ^ {*mapped}):
            text = f"a value, or null, of each of {in_short(keys)} and no other"
            raise ValueError(f"expected {text}; compare {in_short(odd)}")
        return (*(self.levels or map(mapped.get, keys)), self.missing_as)

    def column(self, name: str, columns: Iterable[Column]) -> Column:
        """Return the released column (ValueError if an input does not fit)."""
        sources = self.sources(columns)
        also = () if self.missing_as is None else (self.missing_as,)
        misses = not also and any(one.has_missing for one in sources)
        own: dict[str, Any] = {"name": name, "nullable": misses}
        if self.sum is not None:
            ends = [_ends((*_texts(one), *also)) for one in sources]
        else:
            *values, _ = self.values(sources[0])
            texts = tuple(dict.fromkeys((*filter(None, values), *also)))
            own["nullable"] |= None in values
            if self.levels or len(texts) < 2 or None in map(number_of, texts):
                return CategoricalColumn(kind="categorical", levels=texts, **own)
            ends = [_ends(texts)]
        lower, upper, decimals = zip(*ends, strict=True)
        own |= {"bins": 1, "decimals": max(decimals), "lower": sum(lower), "upper": sum(upper)}
        return NumericColumn(kind="real" if max(decimals) else "integer", **own)


def _texts(column: Column, *, every: bool = False) -> Sequence[str]:
    """Return the levels of a column, or every whole number, or else the bounds of its numbers."""
    if isinstance(column, CategoricalColumn):
        return column.levels
    wide = not column.is_whole or column.upper - column.lower >= MAX_CODES
    if column.is_date or (every and wide):
        raise ValueError(f"expected levels or {'few whole ' * every}numbers of {column.name}")
    if every:
        return [*map(str, range(int(column.lower), int(column.upper) + 1))]
    return [column.text(column.lower), column.text(column.upper)]


def _ends(texts: Sequence[str]) -> tuple[float, float, int]:
    """Return the smallest and the largest of some numbers, and their decimals (ValueError)."""
    numbers = [one for one in map(number_of, texts) if one is not None]
    if len(numbers) < len(texts):
        raise ValueError("expected numbers, found levels that are none")
    return min(numbers), max(numbers), max(len(text.partition(".")[2]) for text in texts)


def derived_faults(
    derived: Mapping[str, _Derived], columns: Sequence[Column], constraints: Sequence[Constraint]
) -> Iterator[str]:
    """Yield the faults of derived columns beside features and constraints."""
    for name, rule in derived.items():
        try:
            rule.column(name, columns)
            if any(name in one.columns for one in constraints):
                raise ValueError("expected no constraint of it; constrain what it is computed from")
        except ValueError as error:
            yield f"derived, {name}: {error}"


_Written = BeforeValidator(of_entries), PlainSerializer(as_entries)
DerivedColumns = Annotated[dict[Name, _Derived], *_Written]
