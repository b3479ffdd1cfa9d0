"""Types as programs write them: `Types.DOUBLE()`, a Python type such as `float`, or a class of the user.

Types.LONG()            int                     TypeInformation with arrow_type, codec, check
Types.LIST(Types.INT()) list[int]               the element of list[int] is LONG
Types.ROW_NAMED(…)      a dataclass, NamedTuple rows with the class's fields, rebuilt as the class
Types.ANY()             object, list, datetime  any plain Python value, kept faithfully (tuple ≠ list, 1 ≠ 1.0)
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

from headrace.errors import JobDefinitionError, UnsupportedFormatError
from headrace.types.kinds import (
    BasicType,
    ListType,
    MapType,
    RowType,
    TupleType,
    TypeInformation,
    short,
)
from headrace.types.rows import positional_names
from headrace.types.text import parse

__all__ = [
    "BasicType",
    "ListType",
    "MapType",
    "RowType",
    "TupleType",
    "TypeInformation",
    "TypeLike",
    "Types",
    "parse",
    "type_of",
]

TypeLike: TypeAlias = TypeInformation | type[Any] | str
"""A TypeInformation, a Python type (`float`, `list[int]`, a dataclass) or a canonical text (`"LIST<LONG>"`)."""


class Types:
    """The names PyFlink's users know. Where a part is asked for, a Python type does as well."""

    @staticmethod
    def STRING() -> TypeInformation:
        return BasicType("STRING")

    @staticmethod
    def BYTE() -> TypeInformation:
        """An 8-bit integer."""
        return BasicType("BYTE")

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        return BasicType("BOOLEAN")

    @staticmethod
    def SHORT() -> TypeInformation:
        """A 16-bit integer."""
        return BasicType("SHORT")

    @staticmethod
    def INT() -> TypeInformation:
        """A 32-bit integer."""
        return BasicType("INT")

    @staticmethod
    def LONG() -> TypeInformation:
        """A 64-bit integer."""
        return BasicType("LONG")

    @staticmethod
    def FLOAT() -> TypeInformation:
        """A float: 32 bits in Arrow columns, kept as it is in state."""
        return BasicType("FLOAT")

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """A 64-bit float; whole numbers that fit exactly are taken too and come back as floats."""
        return BasicType("DOUBLE")

    @staticmethod
    def CHAR() -> TypeInformation:
        """A string of one character."""
        return BasicType("CHAR")

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """An integer of any size."""
        return BasicType("BIG_INT")

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """A `Decimal`, with its exact digits."""
        return BasicType("BIG_DEC")

    @staticmethod
    def INSTANT() -> TypeInformation:
        """A `datetime` with a time zone; comes back in UTC."""
        return BasicType("INSTANT")

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        return BasicType("SQL_DATE")

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """A `time` without a time zone."""
        return BasicType("SQL_TIME")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """A `datetime` without a time zone."""
        return BasicType("SQL_TIMESTAMP")

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any object, by pickle. Restoring it runs code from the checkpoint, so it must be asked for."""
        return BasicType("PICKLED")

    @staticmethod
    def ANY() -> TypeInformation:
        """Any plain Python value: numbers, text, bytes, dates, tuples, lists, dicts, sets, rows, nested at will."""
        return BasicType("ANY")

    @staticmethod
    def ROW(field_types: Sequence[TypeLike]) -> TypeInformation:
        """A row whose fields are called f0, f1, …"""
        return RowType(positional_names(len(field_types)), tuple(map(type_of, field_types)))

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeLike]) -> TypeInformation:
        return RowType(tuple(field_names), tuple(map(type_of, field_types)))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeLike]) -> TypeInformation:
        return TupleType(tuple(map(type_of, field_types)))

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeLike) -> TypeInformation:
        """A list of numbers; of BYTE, it is `bytes`."""
        return ListType(type_of(element_type), "PRIMITIVE_ARRAY")

    @staticmethod
    def BASIC_ARRAY(element_type: TypeLike) -> TypeInformation:
        return ListType(type_of(element_type), "BASIC_ARRAY")

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeLike) -> TypeInformation:
        return ListType(type_of(element_type), "OBJECT_ARRAY")

    @staticmethod
    def MAP(key_type: TypeLike, value_type: TypeLike) -> TypeInformation:
        return MapType(type_of(key_type), type_of(value_type))

    @staticmethod
    def LIST(element_type: TypeLike) -> TypeInformation:
        return ListType(type_of(element_type))


_ANY: Final = BasicType("ANY")

_PLAIN: Final[dict[Any, TypeInformation]] = {
    float: BasicType("DOUBLE"),
    int: BasicType("LONG"),
    str: BasicType("STRING"),
    bool: BasicType("BOOLEAN"),
    bytes: ListType(BasicType("BYTE"), "PRIMITIVE_ARRAY"),
    dt.date: BasicType("SQL_DATE"),
    dt.time: BasicType("SQL_TIME"),
    Decimal: BasicType("BIG_DEC"),
} | dict.fromkeys(
    # A datetime may or may not have a time zone, and bare containers hold anything: only ANY keeps them faithfully.
    (object, Any, list, dict, tuple, set, frozenset, bytearray, complex, dt.datetime, dt.timedelta, uuid.UUID),
    _ANY,
)


def type_of(t: TypeLike) -> TypeInformation:
    """The TypeInformation that `t` stands for. Called at definition time; refuses what it does not know."""
    if isinstance(t, TypeInformation):
        return t
    if isinstance(t, str):
        try:
            return parse(t)
        except UnsupportedFormatError:
            raise JobDefinitionError(f"{short(t)} is no type. Give Types.STRING(), a Python type such as str, "
                                     'or a text such as "LIST<LONG>".') from None  # fmt: skip
    try:
        known = _PLAIN.get(t)
    except TypeError:
        known = None
    return known if known is not None else _composed(t)


def _composed(t: Any) -> TypeInformation:
    origin, args = typing.get_origin(t), typing.get_args(t)
    if origin is list:
        return ListType(type_of(args[0]))
    if origin is dict:
        return MapType(type_of(args[0]), type_of(args[1]))
    if origin is tuple:
        # tuple[int, ...] has no fixed number of parts.
        return _ANY if Ellipsis in args else TupleType(tuple(type_of(a) for a in args if a != ()))
    if origin in (set, frozenset):
        return _ANY
    if origin in (typing.Union, types.UnionType):
        kinds = [a for a in args if a is not type(None)]
        return type_of(kinds[0]) if len(kinds) == 1 else _ANY
    if origin is typing.Annotated:
        return type_of(args[0])
    if isinstance(t, type):
        if dataclasses.is_dataclass(t):
            return _of_dataclass(t)
        if issubclass(t, tuple) and hasattr(t, "_fields"):
            hints = _hints(t)
            return RowType(tuple(t._fields), tuple(type_of(hints.get(f, object)) for f in t._fields), t)
    raise JobDefinitionError(
        f"{short(t)} is no type that Headrace can keep. Give one of Types, a plain Python type, a dataclass or "
        "NamedTuple of such, or Types.PICKLED_BYTE_ARRAY() for objects of any other class."
    )


def _of_dataclass(cls: type) -> RowType:
    fields, hints = dataclasses.fields(cls), _hints(cls)
    for field in fields:
        if not field.init:
            raise JobDefinitionError(
                f'Field "{field.name}" of {cls.__qualname__} is not set by its constructor, so a value could not be '
                "rebuilt. Make it an init field, or declare Types.PICKLED_BYTE_ARRAY()."
            )
    return RowType(tuple(f.name for f in fields), tuple(type_of(hints[f.name]) for f in fields), cls)


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise JobDefinitionError(
            f"The annotations of {cls.__qualname__} cannot be read: {error}. Define the named type at module level."
        ) from None
