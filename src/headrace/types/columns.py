"""Records of a typed stream to Arrow columns and back.

A row or tuple type has a column per field; any other type one column called `value`. Both ways
work column by column and stay in C for plain fields; nested ones are rebuilt value by value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import TypeMismatchError
from headrace.types.kinds import (
    BasicType,
    ListType,
    MapType,
    RowType,
    TupleType,
    TypeInformation,
    mismatch,
    short,
)
from headrace.types.rows import Row, positional_names, row_class, row_maker, values_of

VALUE_COLUMN: Final = "value"
_WHERE: Final = "A record does not fit the type of its stream"


@lru_cache(maxsize=1024)
def schema_of(row_type: TypeInformation) -> pa.Schema | None:
    """The columns that records of this type travel in; None if some part of it travels as a Python object."""
    if row_type.arrow_type is None:
        return None
    if isinstance(row_type, RowType | TupleType):
        fields = zip(row_type.names, row_type.types, strict=True)
        # A batch without columns has no number of rows.
        return pa.schema([(name, t.arrow_type) for name, t in fields]) if row_type.names else None
    return pa.schema([(VALUE_COLUMN, row_type.arrow_type)])


def batch_to_columns(batch: pa.RecordBatch, row_type: TypeInformation | None = None) -> list[list[Any]]:
    """The columns as Python lists. Structs inside are rows and maps dicts, or what `row_type` says they are."""
    types = _column_types(row_type) if row_type is not None else (None,) * batch.num_columns
    return [_values(column, t) for column, t in zip(batch.columns, types, strict=True)]


def batch_to_values(row_type: TypeInformation, batch: pa.RecordBatch) -> list[Any]:
    """The records of a batch: rows, tuples, objects of the user's class or bare values."""
    columns = batch_to_columns(batch, row_type)
    if isinstance(row_type, RowType):
        return row_type.make_all()(columns)
    if isinstance(row_type, TupleType):
        return list(zip(*columns, strict=True))
    return columns[0]


def rows_to_batch(row_type: TypeInformation, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of records; `schema` is what `schema_of` gave. TypeMismatchError names the field and value that fail."""
    columns = _columns(row_type, rows)
    arrays = [
        _array(column, t, field.type, field.name if isinstance(row_type, RowType | TupleType) else None)
        for column, t, field in zip(columns, _column_types(row_type), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column_types(row_type: TypeInformation) -> tuple[TypeInformation, ...]:
    return row_type.types if isinstance(row_type, RowType | TupleType) else (row_type,)


# From Arrow


def _values(column: pa.Array, t: TypeInformation | None) -> list[Any]:
    kind = column.type
    quick = _quick(kind)
    if quick is not None:
        if column.null_count == 0:
            return quick(column)
        if pa.types.is_temporal(kind):
            found = iter(quick(column.drop_null()))
            return [next(found) if valid else None for valid in column.is_valid().to_pylist()]
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode(), t)
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        # A datetime has microseconds; of nanoseconds the rest is lost.
        return _values(column.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns"), t)
    values: list[Any] = column.to_pylist()
    restore = _restorer(kind, t)
    return values if restore is None else [None if v is None else restore(v) for v in values]


@lru_cache(maxsize=1024)
def _quick(arrow: pa.DataType) -> Callable[[pa.Array], list[Any]] | None:
    """The values of a column without nulls, where numpy and arithmetic are faster than `to_pylist`: for dates and
    times, by more than ten times."""
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return lambda column: column.to_numpy().tolist()
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        since_epoch = dt.datetime(1970, 1, 1, tzinfo=None if arrow.tz is None else dt.UTC).__add__
        return lambda column: list(map(since_epoch, _durations(column)))
    if arrow == pa.time64("us"):
        since_midnight = dt.datetime.min.__add__
        return lambda column: list(map(dt.datetime.time, map(since_midnight, _durations(column))))
    if arrow == pa.date32():
        epoch = dt.date(1970, 1, 1).toordinal()
        days = pa.int32()
        return lambda column: list(
            map(dt.date.fromordinal, (column.view(days).to_numpy().astype("i8") + epoch).tolist())
        )
    return None


def _durations(column: pa.Array) -> list[dt.timedelta]:
    return column.view(pa.int64()).to_numpy().view("m8[us]").tolist()  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _restorer(arrow: pa.DataType, t: TypeInformation | None) -> Callable[[Any], Any] | None:
    """From what `to_pylist` gives for a value that is not null to the value; None if they are the same."""
    if pa.types.is_timestamp(arrow) and arrow.tz is not None:
        return lambda v: v.astimezone(dt.UTC)
    if pa.types.is_map(arrow):
        key, value = (t.key, t.value) if isinstance(t, MapType) else (None, None)
        keys, values = _part(_restorer(arrow.key_type, key)), _part(_restorer(arrow.item_type, value))
        return lambda entries: {keys(k): values(v) for k, v in entries}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = _restorer(arrow.value_type, t.element if isinstance(t, ListType) else None)
        if element is None:
            return None
        one = _part(element)
        return lambda elements: [one(e) for e in elements]
    if pa.types.is_struct(arrow):
        return _struct_restorer(arrow, t)
    return None


def _struct_restorer(arrow: pa.DataType, t: TypeInformation | None) -> Callable[[Any], Any]:
    names = tuple(field.name for field in arrow)
    types = t.types if isinstance(t, RowType | TupleType) else (None,) * len(names)
    parts = [_part(_restorer(field.type, part)) for field, part in zip(arrow, types, strict=True)]
    make: Callable[[Iterable[Any]], Any]
    if isinstance(t, TupleType):
        make = tuple
    elif isinstance(t, RowType):
        make = t.make()
    else:
        make = row_maker(names)
    return lambda fields: make([part(fields[name]) for name, part in zip(names, parts, strict=True)])


def _part(restore: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if restore is None:
        return lambda value: value
    return lambda value: None if value is None else restore(value)


# To Arrow


def _columns(row_type: TypeInformation, rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    if not isinstance(row_type, RowType | TupleType):
        return (rows,)
    if not rows:
        return ((),) * len(row_type.types)
    classes = set(map(type, rows))
    if not _record_classes(row_type) >= classes:
        for row in rows:
            reason = f"{short(row)} is no record" if row is None else row_type.misfit(row)
            if reason is not None:
                raise mismatch(row_type, reason, _WHERE)
    if isinstance(row_type, RowType) and all(issubclass(c, _classes_by_attribute(row_type)) for c in classes):
        return [list(map(read, rows)) for read in _readers(row_type)]
    some_rows = any(issubclass(c, Row) for c in classes)
    try:
        columns = list(zip(*(map(values_of, rows) if some_rows else rows), strict=True))
    except ValueError:
        columns = []
    if len(columns) != len(row_type.types):
        wrong = next(row for row in rows if len(row) != len(row_type.types))
        raise mismatch(row_type, f"{short(wrong)} has {len(wrong)} fields instead of {len(row_type.types)}", _WHERE)
    return columns


@lru_cache(maxsize=1024)
def _record_classes(row_type: RowType | TupleType) -> frozenset[type]:
    """Classes of records whose fields need no look at their names."""
    if isinstance(row_type, TupleType):
        return frozenset({tuple})
    by_attribute = _classes_by_attribute(row_type)
    if row_type.constructor is not None and by_attribute:
        return frozenset(by_attribute)
    return frozenset({row_type.value_class, *by_attribute, tuple, row_class(positional_names(len(row_type.names)))})


@lru_cache(maxsize=1024)
def _classes_by_attribute(row_type: RowType) -> tuple[type, ...]:
    """Classes of records that have an attribute for every field: a column is then one C loop over the records."""
    if row_type.constructor is None:
        return row_class(row_type.names, True), row_class(row_type.names, False)
    return () if issubclass(row_type.constructor, tuple) else (row_type.constructor,)


@lru_cache(maxsize=1024)
def _readers(row_type: RowType) -> tuple[Callable[[Any], Any], ...]:
    if row_type.constructor is not None:
        return tuple(map(attrgetter, row_type.names))
    return tuple(map(attrgetter, row_class(row_type.names).__row_attributes__.values()))


_NOTHING: Final = type(None)
_FITTING: Final[dict[TypeInformation, frozenset[type]]] = {
    BasicType("STRING"): frozenset({str, _NOTHING}),
    BasicType("BYTE"): frozenset({int, _NOTHING}),
    BasicType("SHORT"): frozenset({int, _NOTHING}),
    BasicType("INT"): frozenset({int, _NOTHING}),
    BasicType("LONG"): frozenset({int, _NOTHING}),
    BasicType("FLOAT"): frozenset({float, int, _NOTHING}),
    BasicType("DOUBLE"): frozenset({float, int, _NOTHING}),
    BasicType("BOOLEAN"): frozenset({bool, _NOTHING}),
    BasicType("SQL_DATE"): frozenset({dt.date, _NOTHING}),
    ListType(BasicType("BYTE"), "PRIMITIVE_ARRAY"): frozenset({bytes, _NOTHING}),
}
"""Python classes whose values Arrow takes exactly or refuses by itself. It would silently take True for
1.0, b"a" for "a" and 1.0 for 1, so the values of any other class, and all of other types, are looked at one by one."""

_ARROW_REFUSES: Final = (pa.ArrowException, UnicodeEncodeError, OverflowError)

_LOOKED_AT: Final[frozenset[type]] = frozenset()


def _array(column: Sequence[Any], t: TypeInformation, arrow: pa.DataType, field: str | None) -> pa.Array:
    if not _FITTING.get(t, _LOOKED_AT).issuperset(map(type, column)):
        _check_all(column, t, field)
    shape = _shaper(t)
    try:
        array = pa.array(column if shape is None else [None if v is None else shape(v) for v in column], arrow)
        if pa.types.is_float32(arrow) and pc.any(pc.is_inf(array)).as_py():
            _check_all(column, t, field)  # Arrow rounds what is too large for 32 bits to infinity
        return array
    except _ARROW_REFUSES as error:
        _check_all(column, t, field)
        raise TypeMismatchError(f"{_WHERE}: {_named(field)}Arrow cannot hold a value as {t}: {error}") from error


def _check_all(column: Sequence[Any], t: TypeInformation, field: str | None) -> None:
    for value in column:
        reason = t.misfit(value)
        if reason is not None:
            raise mismatch(t, f"{_named(field)}{reason}", _WHERE)


def _named(field: str | None) -> str:
    return "" if field is None else f'field "{field}": '


@lru_cache(maxsize=1024)
def _shaper(t: TypeInformation) -> Callable[[Any], Any] | None:
    """From a value that fits and is not None to what `pa.array` takes; None if they are the same."""
    match t:
        case ListType(element=element) if not t.is_bytes:
            one = _shaper(element)
            if one is None:
                return None
            part = _part(one)
            return lambda elements: [part(e) for e in elements]
        case MapType(key=key, value=value):
            keys, values = _part(_shaper(key)), _part(_shaper(value))
            return lambda entries: [(keys(k), values(v)) for k, v in entries.items()]
        case TupleType(names=names, types=types):
            return _struct_shaper(tuple, names, types)
        case RowType(names=names, types=types):
            return _struct_shaper(t.take_apart(), names, types)
    return None


def _struct_shaper(
    apart: Callable[[Any], tuple[Any, ...]], names: tuple[str, ...], types: tuple[TypeInformation, ...]
) -> Callable[[Any], Any]:
    parts = [_part(_shaper(t)) for t in types]
    return lambda value: {n: p(v) for n, p, v in zip(names, parts, apart(value), strict=True)}
