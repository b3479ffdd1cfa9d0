"""How `key_by` understands what it is given: a function, a `KeySelector`, a field or several fields."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from headrace.errors import JobDefinitionError
from headrace.operators.functions import Function, KeySelector, callable_of
from headrace.plan.fields import FieldOf, FieldsOf, field_names, field_type, resolve_field, traced_fields
from headrace.plan.graph import KeySpec
from headrace.types.information import RowType, TupleType, TypeInformation, TypeLike, Types, type_of

KeyLike: TypeAlias = Callable[[Any], Any] | KeySelector | str | int | tuple[str | int, ...] | list[str | int]


def key_spec(
    key: KeyLike, type_info: TypeInformation | None, key_type: TypeLike | None = None, call: str = "key_by()"
) -> KeySpec:
    """The key of records of that type. Where it is made of fields of typed records, the spec names them."""
    declared = None if key_type is None else type_of(key_type)
    if isinstance(key, str | int):
        return _by_fields((key,), True, type_info, declared, call)
    if isinstance(key, tuple | list):
        if not key:
            raise JobDefinitionError(f"{call} got no fields. Name at least one, or give a function.")
        return _by_fields(tuple(key), False, type_info, declared, call)
    if isinstance(key, Function) and type(key).open is not Function.open:
        raise JobDefinitionError(
            f"{call} got {type(key).__name__}, which has an open() method, but a key must follow from the record "
            "alone. Compute what it needs in its constructor, or in a map() before."
        )
    selector = callable_of(key, "get_key")
    traced = traced_fields(selector, type_info)
    if traced is None:
        return KeySpec(selector, key_type=declared)
    fields, single = traced
    return KeySpec(selector, fields, single, declared or _type_of_fields(fields, single, type_info))


def _by_fields(
    fields: tuple[str | int, ...],
    single: bool,
    type_info: TypeInformation | None,
    declared: TypeInformation | None,
    call: str,
) -> KeySpec:
    found = [resolve_field(type_info, field, call) for field in fields]
    columns = tuple(name for name in found if name is not None)
    if len(columns) != len(fields):
        readers = tuple(FieldOf(field) for field in fields)
        return KeySpec(readers[0] if single else FieldsOf(readers), single=single, key_type=declared)
    return KeySpec(
        _reader(columns, single, type_info), columns, single, declared or _type_of_fields(columns, single, type_info)
    )


def _reader(columns: tuple[str, ...], single: bool, type_info: TypeInformation | None) -> Callable[[Any], Any]:
    # Both getters read in C. They give a tuple only for two fields or more, and take a dotted name for a path.
    if isinstance(type_info, TupleType):
        parts: list[Any] = [field_names(type_info).index(name) for name in columns]
        return itemgetter(*parts) if single or len(parts) > 1 else FieldsOf((FieldOf(parts[0]),))
    if (single or len(columns) > 1) and all(name.isidentifier() for name in columns):
        return attrgetter(*columns)
    readers = tuple(FieldOf(name) for name in columns)
    return readers[0] if single else FieldsOf(readers)


def _type_of_fields(fields: tuple[str, ...], single: bool, type_info: TypeInformation | None) -> TypeInformation | None:
    if not isinstance(type_info, RowType | TupleType):
        return None
    types = [t for t in (field_type(type_info, name) for name in fields) if t is not None]
    return types[0] if single else Types.TUPLE(types)
