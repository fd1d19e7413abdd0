"""Static check that a query acts on one patient at a time; nothing is run.

A query is patient-local if its rows about a patient are a function of that patient's rows in the
tables, and of public tables. Two databases that differ by one patient then give results that differ
by that patient's rows alone. The check is sound and incomplete: what it cannot prove is refused.

A table that is not public names patients in the unit's column. A query about patients has to

- return that column as it stands in the tables;
- join tables of patients by equality of that column, and never by an outer join that may keep rows
  of the right side; that column of the right side of a LEFT JOIN may be NULL and names nobody;
- group, number or compare rows (GROUP BY, window, DISTINCT, UNION) within a patient only, by what
  does not depend on the order of rows;
- keep a subquery about patients to the patient of the row around it;
- be unambiguous: columns stand with their table wherever several could be meant,
  an aggregate is of columns of its own SELECT, and no two columns of a result share a name.

If every row is another patient, the query reads one row at a time.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from storage.files.documents import listed
from storage.sources.sql_queries import AGGREGATES, name_of

_SAID = listed(__package__, "queries.toml")["of_several_patients"]

PUBLIC, PATIENTS, SAME_PATIENT = "public", "patients", "same patient"
"""Content of a relation: no patient, rows of patients, or rows of the outer query's patient."""


def check_patient_local(query: exp.Query, *, unit: str | None, public: Collection[str]) -> None:
    """Refuse (ValueError) a query that is not proved to act on one patient at a time.

    `unit` is the column of the patient, None if every row is one; `public` are the public tables.

    Privacy
    -------
    A query that passes has, for each patient, rows that are a function of that patient's rows in
    the tables it names. A view counts as a table and is assumed to be patient-local.
    """
    rules = _Rules(unit=unit, public=frozenset(public))
    if rules.statement(query) != PATIENTS:
        _refuse("none")


@dataclass(frozen=True)
class _Names:
    """Names in scope: parts of WITH, and tables of patients of the outer query."""

    parts: Mapping[str, str] = field(default_factory=dict)
    unfinished: frozenset[str] = frozenset()
    around: frozenset[str] = frozenset()
    nested: bool = False


@dataclass(frozen=True)
class _Rules:
    unit: str | None
    public: frozenset[str]

    def statement(self, query: exp.Query) -> str:
        """Return the content of a query, including the parts of its WITH."""
        parts: dict[str, str] = {}
        start = query.args.get("with_")
        ctes = start.expressions if start is not None else []
        for i, cte in enumerate(ctes):
            unfinished = frozenset(later.alias for later in ctes[i:])
            parts[cte.alias] = self.relation(cte.this, _Names(parts, unfinished))
        return self.relation(query, _Names(parts))

    def relation(self, node: exp.Expr, names: _Names) -> str:
        """Return the content of a relation; refuse rows of a patient that depend on others."""
        node = node.unnest() if isinstance(node, exp.Subquery) else node
        if isinstance(node, exp.Table):
            name = name_of(node)
            if name in names.unfinished:
                _refuse("with", name=name)
            return names.parts.get(name) or (PUBLIC if name in self.public else PATIENTS)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, names)
        if isinstance(node, exp.Select):
            return _Select(self, node, names).holds()
        _refuse("part")

    def _set_operation(self, query: exp.SetOperation, names: _Names) -> str:
        word = query.key.upper()
        left, right = self.relation(query.this, names), self.relation(query.expression, names)
        if left != right:
            _refuse("set_public", word=word)
        if left == PATIENTS and self.unit is None:
            _refuse("set_repeats", word=word)
        if left == PATIENTS and self._place(query.this) != self._place(query.expression):
            _refuse("set_place", word=word, unit=self.unit)
        return left

    def _place(self, query: exp.Expr) -> int:
        query = query.unnest() if isinstance(query, exp.Subquery) else query
        if isinstance(query, exp.SetOperation):
            return self._place(query.this)
        names = [column.alias_or_name for column in query.expressions]
        if any(column.is_star for column in query.expressions):
            _refuse("set_star")
        return names.index(str(self.unit))


class _Select:
    """One SELECT: its sources, and the proof that each row belongs to one patient."""

    def __init__(self, rules: _Rules, select: exp.Select, names: _Names) -> None:
        self.rules, self.unit, self.select, self.names = rules, rules.unit, select, names
        self.sources: dict[str, str] = {}
        self.units: set[str] = set()
        start = select.args.get("from_")
        if start is not None:
            self._add(start.this)
        for join in select.args.get("joins") or ():
            self._join(join)
        where = select.args.get("where")
        self.conditions = list(_conjuncts(where.this)) if where is not None else []

    @property
    def _patients(self) -> frozenset[str]:
        return frozenset(name for name, holds in self.sources.items() if holds == PATIENTS)

    def holds(self) -> str:
        """Check the whole SELECT and return its content."""
        self._check_names()
        self._check_subqueries()
        if not self._patients:
            holds = PUBLIC
        elif any(self._links(one, self._patients, self.names.around) for one in self.conditions):
            holds = SAME_PATIENT
        else:
            holds = PATIENTS
        if self.unit is None and holds != PUBLIC:
            self._check_rows()
        else:
            self._check_groups(holds)
        if self.unit is not None and holds == PATIENTS and not self._returns_unit():
            _refuse("unit_once", unit=self.unit)
        return holds

    def _add(self, node: exp.Expr) -> str:
        inner = _Names(self.names.parts, self.names.unfinished, nested=self.names.nested)
        name, holds = node.alias_or_name, self.rules.relation(node, inner)
        if name in self.sources or (self.sources and not name):
            _refuse("two_tables")
        self.sources[name] = holds
        if holds == PATIENTS:
            self.units.add(name)
        return name

    def _join(self, join: exp.Join) -> None:
        before = self._patients
        name = self._add(join.this)
        if not self._patients:
            return
        if self.unit is None:
            _refuse("join_repeats")
        if not before or next(iter(self.sources)) not in before:
            _refuse("join_public")
        if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER", "CROSS"):
            _refuse("join_side", side=join.side or join.kind)
        using = self.unit in {column.name for column in join.args.get("using") or ()}
        if join.side == "LEFT":  # Rows without a match have NULL there, as if one patient.
            self.units.discard(name)
        on = join.args.get("on")
        linked = on is not None and any(
            self._links(one, frozenset({name}), before) for one in _conjuncts(on)
        )
        if self.sources[name] == PATIENTS and not (using or linked):
            _refuse("join_unit", unit=self.unit)

    def _links(self, node: exp.Expr, ours: Collection[str], others: Collection[str]) -> bool:
        """Return true for a condition that equates the patients of two rows."""
        if not isinstance(node, exp.EQ):
            return False
        sides = (node.this, node.expression)
        if not all(isinstance(side, exp.Column) and side.name == self.unit for side in sides):
            return False
        first, second = (side.table for side in sides)
        others = set(others) - (set(self.sources) - self._patients) - set(ours)
        return (first in ours and second in others) or (second in ours and first in others)

    def _is_unit(self, node: exp.Expr) -> bool:
        """Return true for the bare patient column of a table of patients."""
        if not isinstance(node, exp.Column) or node.name != self.unit:
            return False
        return (node.table or next(iter(self.sources), "")) in self.units

    def _returns_unit(self) -> bool:
        found = 0
        for column in self.select.expressions:
            if column.is_star:
                tables = {column.table} if isinstance(column, exp.Column) else set(self.sources)
                if len(tables) > 1 or not tables <= self.units:
                    _refuse("star", unit=self.unit)
                found += 1
            elif column.alias_or_name.lower() == str(self.unit).lower():
                if not self._is_unit(column.unalias()):
                    _refuse("unit_name", unit=self.unit)
                found += column.alias_or_name == self.unit
        return found == 1

    def _check_names(self) -> None:
        """Require that each name has one meaning, independent of the columns of the tables."""
        sources = set(self.sources)
        if len(sources) == 1 and not self.names.nested:
            sources.add("")
        for column in _own(self.select, exp.Column):
            table = column.text("table")
            if table not in sources and not (table and self.names.nested):
                _refuse("column_table", column=column.name)
        for aggregate in _own(self.select, *AGGREGATES):
            # A database may compute it for the SELECT around, over all the rows there.
            if any(column.table not in sources for column in aggregate.find_all(exp.Column)):
                _refuse("aggregate")
        named = [one for one in self.select.expressions if not one.is_star]
        if len(named) > 1 and not all(isinstance(one, exp.Alias | exp.Column) for one in named):
            _refuse("column_name")
        if len({one.alias_or_name.lower() for one in named}) < len(named):
            _refuse("two_columns")

    def _check_rows(self) -> None:
        """Refuse constructs that combine rows if every row is another patient."""
        found = {
            "GROUP BY": self.select.args.get("group"),
            "DISTINCT": self.select.args.get("distinct"),
            "an aggregate": _aggregates(self.select),
            "a window function": any(_own(self.select, exp.Window)),
        }
        for construct, stands in found.items():
            if stands:
                _refuse("rows", construct=construct)

    def _check_groups(self, holds: str) -> None:
        """Require that combined rows belong to one patient, and that their order has no effect."""
        for window in _own(self.select, exp.Window):
            if not isinstance(window.this, (*AGGREGATES, exp.Rank, exp.DenseRank)):
                _refuse("window_kind")
            within = any(self._is_unit(one) for one in window.args.get("partition_by") or ())
            if holds != PUBLIC and not within:
                _refuse("window", unit=self.unit)
        if self.select.args.get("distinct") and holds == PATIENTS and not self._returns_unit():
            _refuse("distinct", unit=self.unit)
        group = self.select.args.get("group")
        by = group.expressions if group is not None else []
        if group is None and not _aggregates(self.select):
            return
        if holds == PATIENTS and not any(self._is_unit(one) for one in by):
            _refuse("group", unit=self.unit)
        for part in (*self.select.expressions, self.select.args.get("having")):
            if part is not None and not _is_grouped(part, by):
                _refuse("one_row")

    def _check_subqueries(self) -> None:
        around = self.names.around - set(self.sources) | self._patients
        names = _Names(self.names.parts, self.names.unfinished, around, nested=True)
        for query in _own(self.select, exp.Query):
            holds, inner = self.rules.relation(query, names), query.unnest()
            is_condition = isinstance(query.parent, exp.Exists) or query.arg_key == "query"
            if holds != PATIENTS and not is_condition:
                single = isinstance(inner, exp.Select) and not inner.args.get("group")
                if not (single and _aggregates(inner)):
                    _refuse("one_value")
            if holds == PATIENTS and not self._lists_patients(query, inner):
                _refuse("subquery_rows" if self.unit is None else "subquery", unit=self.unit)

    def _lists_patients(self, query: exp.Expr, inner: exp.Expr) -> bool:
        """Return true for a condition ``patient IN (SELECT patient ...)`` that only keeps rows.

        Under NOT, or where unknown is not false, another patient's NULL would change the row.
        """
        test = next((one for one in self.conditions if one.args.get("query") is query), None)
        return (
            test is not None
            and self._is_unit(test.this)
            and isinstance(inner, exp.Query)
            and len(inner.selects) == 1
            and not inner.is_star
        )


def _own(select: exp.Expr, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield nodes of some kinds in a SELECT, without those of its subqueries."""
    roots = list(select.expressions)
    roots += [one for key in ("where", "group", "having", "order") if (one := select.args.get(key))]
    roots += [on for join in select.args.get("joins") or () if (on := join.args.get("on"))]
    for root in roots:
        for node in root.walk(prune=lambda one: isinstance(one, exp.Query)):
            if isinstance(node, kinds):
                yield node


def _aggregates(select: exp.Expr) -> bool:
    found = (one for one in _own(select, *AGGREGATES) if not isinstance(one.parent, exp.Window))
    return select.args.get("having") is not None or any(found)


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _is_grouped(node: exp.Expr, by: Collection[exp.Expr]) -> bool:
    if node in by or (isinstance(node, AGGREGATES) and not isinstance(node.parent, exp.Window)):
        return True
    if isinstance(node, exp.Column | exp.Star | exp.Query):
        return False
    return all(_is_grouped(child, by) for child in node.iter_expressions())


def _refuse(key: str, **facts: object) -> NoReturn:
    raise ValueError(
        f"expected a query that acts on one patient at a time, found {_SAID[key].format(**facts)}, "
        "or read a view that does it and name it in patient_local"
    )
