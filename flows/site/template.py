"""The commented site file that ``clustmix init`` writes for a person to fill in.

It is a function of column names and types, and of a codebook. No value, bound, level or count of
the data enters it, since bounds and levels of records would be a release without a guarantee.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pydantic import ValidationError

from flows.site.proposal import derivation, label_lines, proposal, quoted, shown
from privacy.errors import InputError, refusals
from storage.codebooks.variables import Variable
from storage.schema.columns import did_you_mean, number_of
from storage.schema.plain_yaml import PLACEHOLDER
from storage.sources.cells import arrow_kind
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource

refusal = refusals(__package__)

Described = tuple[CsvSource | ParquetSource, Sequence[str], Mapping[str, str] | None]
"""A table's source, column names, and kinds by the types of a Parquet file."""


def site_template(
    header: Sequence[str],
    kinds: Mapping[str, str] | None = None,
    source: CsvSource | ParquetSource | None = None,
    *,
    codebook: Mapping[str, Variable] | None = None,
    label: str | None = None,
    patient: str | None = None,
    ignore: Sequence[str] = (),
    time: str | None = None,
    events: Mapping[str, Described] = MappingProxyType({}),
) -> str:
    """Return a site file with placeholders for the decisions of a person.

    Facts of the codebook are filled in. The rest is a marked guess or a placeholder, and
    `load_site` refuses the file until all are filled in. No record is read. InputError for a named
    column that the header lacks; columns of `events` may be ignored, too.
    """
    named = {"label": label, "time": time, "patient": patient}
    every = [*header, *(name for _, own, _ in events.values() for name in own)]
    for option, name in (*named.items(), *(("ignore", n) for n in ignore)):
        allowed = every if option == "ignore" else header
        if name is not None and name not in allowed:
            raise refusal("COLUMN_MISSING", option=option, hint=did_you_mean(name, allowed))
    codebook = codebook or {}
    described = _matched(header, codebook)
    used = {variable.name for variable in _matched(every, codebook).values()}
    if codebook and not described:
        raise refusal("CODEBOOK_OTHER_TABLE")
    unused = _unused(described, ignore)
    features = [name for name in header if name not in {*named.values(), *unused}]
    rules = {one: derivation(one, described, {*features} - {one}) for one in features}
    texts = {one: described[one].derived for one in features if one in described and rules[one]}
    derived = [(name, rules[name], shown(text)) for name, text in texts.items() if text]
    roles = {*named.values(), *(name for name, _, _ in derived)}
    return _template().render(
        source=source,
        **_declared(header, kinds, described, unused, roles=roles),
        derived=derived,
        alike=[(name, rules[name]) for name in features if rules[name] and not texts.get(name)],
        label=label,
        time=time,
        time_unit=described[time].unit if time in described else None,
        label_lines=label_lines(described.get(label or "")),
        patient=patient,
        absent=shown(", ".join(n for n, v in codebook.items() if n not in used and not v.optional)),
        unread=shown(", ".join(next((one.unread for one in codebook.values()), ()))),
        fill_in=PLACEHOLDER,
        events=[
            {"name": name, "source": place, "key": patient if patient in own else None}
            | _declared(own, types, known, _unused(known, ignore), roles={patient})
            for name, (place, own, types) in events.items()
            for known in [_matched(own, codebook)]
        ],
    )


def _declared(
    header: Sequence[str],
    kinds: Mapping[str, str] | None,
    described: Mapping[str, Variable],
    unused: Mapping[str, str],
    *,
    roles: Collection[str | None],
) -> dict[str, Any]:
    """Return the columns of a table that have no role, as declared and as left out."""
    own = [name for name in header if name not in roles]
    return {
        "columns": [
            proposal(name, (kinds or {}).get(name), described.get(name))
            for name in own
            if name not in unused
        ],
        "ignore": [(name, unused[name]) for name in own if name in unused],
    }


def _unused(described: Mapping[str, Variable], ignore: Sequence[str]) -> dict[str, str]:
    """Return the columns that are left out, with the reason that the codebook gives."""
    return {
        name: shown(f"by the codebook: {variable.meaning or 'identifier, date or free text'}")
        for name, variable in described.items()
        if variable.kind == "ignore"
    } | dict.fromkeys(ignore, "")


def _matched(header: Sequence[str], codebook: Mapping[str, Variable]) -> dict[str, Variable]:
    """Return the variables of columns by exact name, else ignoring case and blanks."""
    alike = {name.strip().casefold(): variable for name, variable in codebook.items()}
    found = {name: codebook.get(name) or alike.get(name.strip().casefold()) for name in header}
    return {name: variable for name, variable in found.items() if variable is not None}


@cache
def _template() -> Template:
    environment = Environment(  # noqa: S701 -- YAML, in which `quoted` writes every name
        loader=PackageLoader("flows.site"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    return environment.get_template("site.yaml.j2")


def source_of(
    path: Path, *, delimiter: str = ",", encoding: str = "utf-8"
) -> CsvSource | ParquetSource:
    """Return a table as a source: Parquet by its suffix or as a folder, else a text file."""
    if path.suffix == ".parquet" or path.is_dir():
        return ParquetSource(kind="parquet", path=path)
    try:
        return CsvSource(kind="csv", path=path, delimiter=delimiter, encoding=encoding)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("encoding",):
            raise refusal("INVALID_ENCODING") from None
        raise refusal("INVALID_DELIMITER") from None


def event_tables(
    named: Sequence[str], *, delimiter: str = ",", encoding: str = "utf-8"
) -> dict[str, Described]:
    """Describe tables that are given as ``NAME=TABLE``; see `source_of` and `describe_table`."""
    places = dict(one.partition("=")[::2] for one in named)
    if len(places) < len(named) or not all(places.values()):
        raise refusal("EVENTS_FORM")
    return {
        name: (source, *describe_table(source))
        for name, place in places.items()
        for source in [source_of(Path(place), delimiter=delimiter, encoding=encoding)]
    }


def describe_table(
    source: CsvSource | ParquetSource,
) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Return column names, and kinds of a single Parquet file, from header line or footer."""
    try:
        header = CohortReader(source).header()
    except InputError as error:
        raise InputError(error.code, _before_a_site_file(error.message)) from None
    if isinstance(source, CsvSource):
        if any(number_of(name) is not None for name in header):
            raise refusal("CSV_HEADER")
        return header, None
    path = Path(str(source.path))
    if path.is_dir():
        return header, None
    schema = pq.read_schema(path)
    kinds = {name: arrow_kind(schema.field(name).type) for name in header}
    return header, {name: kind for name, kind in kinds.items() if kind != "ignore"}


def _before_a_site_file(message: str) -> str:
    """Replace keys of the site file, which does not exist yet, by options of ``init``."""
    for key, option in (
        ("declare encoding in the site file", "give --encoding"),
        ("set 'delimiter' in the site file to", "give as --delimiter"),
        ("correct the path in the site file", "correct the path"),
    ):
        message = message.replace(key, option)
    return message
