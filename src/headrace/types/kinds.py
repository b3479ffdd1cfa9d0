"""The kinds of types there are, each a small frozen value.

A type answers four questions: how it is written (`str`, kept in checkpoint metadata), as which Arrow
type it travels, by which codec it is stored, and whether a value fits. Every type holds None as well.

    BasicType   STRING BYTE SHORT INT LONG FLOAT DOUBLE BOOLEAN CHAR BIG_INT BIG_DEC
                INSTANT SQL_DATE SQL_TIME SQL_TIMESTAMP ANY PICKLED
    ListType    LIST<e>  PRIMITIVE_ARRAY<e>  BASIC_ARRAY<e>  OBJECT_ARRAY<e>     Python lists
    MapType     MAP<k, v>                                                        dicts
    TupleType   TUPLE<a, b>                                                      tuples
    RowType     ROW<id STRING, temperature DOUBLE>                               rows, or a class of the user
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import JobDefinitionError, TypeMismatchError
from headrace.types.rows import Row, RowKind, check_columns, positional_names, row_class, row_maker, values_of

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SHOWN_CHARACTERS: Final = 80
_ROUNDS_TO_INFINITY: Final = 3.4028235677973366e38
"""The smallest number that a 32-bit float rounds to infinity."""


def short(value: Any) -> str:
    """The value's repr, cut to a length that fits a message; never raises."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} whose repr fails>"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


class TypeInformation(ABC):
    """What a state, a stream or a field holds. Frozen, hashable, light to pickle; `str` is its canonical text."""

    __slots__ = ()

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType | None:
        """The Arrow type its values travel as; None if they travel as Python objects."""

    @property
    @abstractmethod
    def codec_name(self) -> str:
        """`"msgpack"`, or `"pickle"` if any part of it is pickled."""

    @property
    @abstractmethod
    def immutable(self) -> bool:
        """Whether its values may be handed out without a copy."""

    @abstractmethod
    def misfit(self, value: Any) -> str | None:
        """Why the value does not fit, as a part of a sentence; None if it fits."""

    def check(self, value: Any, where: str) -> None:
        """Raise TypeMismatchError naming the value, the type and the place if the value does not fit."""
        reason = self.misfit(value)
        if reason is not None:
            raise mismatch(self, reason, where)


def mismatch(type_info: TypeInformation, reason: str, where: str) -> TypeMismatchError:
    """The error for a value that does not fit; `reason` comes from `misfit`."""
    return TypeMismatchError(
        f"{where}: {reason}; declared was {type_info}. Convert the value, or declare a type that holds it "
        f"(Types.ANY() holds any plain Python value, Types.PICKLED_BYTE_ARRAY() any object)."
    )


class _Spec(NamedTuple):
    """What is known of one basic type."""

    python_types: tuple[type, ...]
    arrow: pa.DataType | None
    extra: Callable[[Any], str | None] | None = None
    """A further condition on a value of the right Python type; gives the reason it fails, or None."""


def _whole(bits: int) -> Callable[[Any], str | None]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def out_of_range(value: Any) -> str | None:
        return None if low <= value <= high else f"it is outside of {low}..{high}"

    return out_of_range


def _inexact(value: Any) -> str | None:
    if isinstance(value, float | np.floating):
        return None
    try:
        return None if int(float(value)) == value else "a DOUBLE cannot hold this integer exactly"
    except OverflowError:
        return "a DOUBLE cannot hold an integer of this size"


def _beyond_float32(value: Any) -> str | None:
    # An infinity or NaN is a legal FLOAT; a finite number that would turn into an infinity is not.
    reason = _inexact(value)
    if reason is None and _ROUNDS_TO_INFINITY <= abs(float(value)) < float("inf"):
        return "it is outside of the range of a 32-bit float"
    return reason


def _bad_text(value: Any) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "it holds a lone surrogate, which UTF-8 cannot write"
    return None


def _bad_char(value: Any) -> str | None:
    return _bad_text(value) if len(value) == 1 else "it is not exactly one character"


def _not_aware(value: Any) -> str | None:
    if value.utcoffset() is None:
        return "it has no time zone (use Types.SQL_TIMESTAMP() for such)"
    try:
        value.timestamp()
    except (OverflowError, ValueError):
        return "it is too close to the ends of the calendar"
    return None


def _not_naive(value: Any) -> str | None:
    return None if value.tzinfo is None else "it has a time zone (use Types.INSTANT() for such)"


def _is_datetime(value: Any) -> str | None:
    return "it is a datetime, and its time of day would be lost" if isinstance(value, datetime) else None


_BASIC: Final[dict[str, _Spec]] = {
    "STRING": _Spec((str,), pa.string(), _bad_text),
    "BYTE": _Spec((int, np.integer), pa.int8(), _whole(8)),
    "SHORT": _Spec((int, np.integer), pa.int16(), _whole(16)),
    "INT": _Spec((int, np.integer), pa.int32(), _whole(32)),
    "LONG": _Spec((int, np.integer), pa.int64(), _whole(64)),
    "FLOAT": _Spec((float, int, np.floating, np.integer), pa.float32(), _beyond_float32),
    "DOUBLE": _Spec((float, int, np.floating, np.integer), pa.float64(), _inexact),
    "BOOLEAN": _Spec((bool, np.bool_), pa.bool_()),
    "CHAR": _Spec((str,), pa.string(), _bad_char),
    "BIG_INT": _Spec((int,), None),
    "BIG_DEC": _Spec((Decimal,), None),
    "INSTANT": _Spec((datetime,), pa.timestamp("us", tz="UTC"), _not_aware),
    "SQL_DATE": _Spec((date,), pa.date32(), _is_datetime),
    "SQL_TIME": _Spec((time,), pa.time64("us"), _not_naive),
    "SQL_TIMESTAMP": _Spec((datetime,), pa.timestamp("us"), _not_naive),
    "ANY": _Spec((object,), None),
    "PICKLED": _Spec((object,), None),
}

BASIC_NAMES: Final = tuple(_BASIC)
LIST_FORMS: Final = ("LIST", "PRIMITIVE_ARRAY", "BASIC_ARRAY", "OBJECT_ARRAY")


@dataclass(frozen=True, slots=True)
class BasicType(TypeInformation):
    """A type without parts, known by its name."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def arrow_type(self) -> pa.DataType | None:
        return _BASIC[self.name].arrow

    @property
    def codec_name(self) -> str:
        return "pickle" if self.name == "PICKLED" else "msgpack"

    @property
    def immutable(self) -> bool:
        return self.name not in ("ANY", "PICKLED")

    def misfit(self, value: Any) -> str | None:
        if value is None:
            return None
        spec = _BASIC[self.name]
        # bool is an int to isinstance, but a flag in a number's place is a mistake.
        is_flag = isinstance(value, bool) and self.name not in ("BOOLEAN", "ANY", "PICKLED")
        if is_flag or not isinstance(value, spec.python_types):
            return f"{short(value)} ({type(value).__name__}) is no {self.name}"
        reason = spec.extra(value) if spec.extra is not None else None
        return None if reason is None else f"{short(value)} is no {self.name}: {reason}"


@dataclass(frozen=True, slots=True)
class ListType(TypeInformation):
    """A Python list of elements of one type; `PRIMITIVE_ARRAY<BYTE>` alone is `bytes`."""

    element: TypeInformation
    form: str = "LIST"

    def __str__(self) -> str:
        return f"{self.form}<{self.element}>"

    @property
    def is_bytes(self) -> bool:
        return self.form == "PRIMITIVE_ARRAY" and self.element == BasicType("BYTE")

    @property
    def arrow_type(self) -> pa.DataType | None:
        if self.is_bytes:
            return pa.binary()
        element = self.element.arrow_type
        return None if element is None else pa.list_(element)

    @property
    def codec_name(self) -> str:
        return self.element.codec_name

    @property
    def immutable(self) -> bool:
        return self.is_bytes

    def misfit(self, value: Any) -> str | None:
        wanted = bytes if self.is_bytes else list
        if value is None:
            return None
        if not isinstance(value, wanted):
            return f"{short(value)} ({type(value).__name__}) is no {self}, which is a Python {wanted.__name__}"
        if self.is_bytes:
            return None
        for i, element in enumerate(value):
            reason = self.element.misfit(element)
            if reason is not None:
                return f"element {i}: {reason}"
        return None


@dataclass(frozen=True, slots=True)
class MapType(TypeInformation):
    """A dict."""

    key: TypeInformation
    value: TypeInformation

    def __str__(self) -> str:
        return f"MAP<{self.key}, {self.value}>"

    @property
    def arrow_type(self) -> pa.DataType | None:
        key, value = self.key.arrow_type, self.value.arrow_type
        return None if key is None or value is None else pa.map_(key, value)

    @property
    def codec_name(self) -> str:
        return joint_codec((self.key, self.value))

    @property
    def immutable(self) -> bool:
        return False

    def misfit(self, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            return f"{short(value)} ({type(value).__name__}) is no {self}, which is a Python dict"
        for key, entry in value.items():
            if key is None:
                return "key None: a map's keys must not be None"
            if (reason := self.key.misfit(key)) is not None:
                return f"key {short(key)}: {reason}"
            if (reason := self.value.misfit(entry)) is not None:
                return f"entry {short(key)}: {reason}"
        return None


@dataclass(frozen=True, slots=True)
class TupleType(TypeInformation):
    """A tuple with a type for each position."""

    types: tuple[TypeInformation, ...]

    def __str__(self) -> str:
        return f"TUPLE<{', '.join(map(str, self.types))}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its Arrow columns."""
        return positional_names(len(self.types))

    @property
    def arrow_type(self) -> pa.DataType | None:
        return _struct(self.names, self.types)

    @property
    def codec_name(self) -> str:
        return joint_codec(self.types)

    @property
    def immutable(self) -> bool:
        return all(t.immutable for t in self.types)

    def misfit(self, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, tuple | Row):
            return f"{short(value)} ({type(value).__name__}) is no {self}, which is a Python tuple"
        if len(value) != len(self.types):
            return f"{short(value)} has {len(value)} elements instead of {len(self.types)}"
        for i, (t, element) in enumerate(zip(self.types, values_of(value), strict=True)):
            reason = t.misfit(element)
            if reason is not None:
                return f"element {i}: {reason}"
        return None


@dataclass(frozen=True, slots=True)
class RowType(TypeInformation):
    """Named fields. Values are `Row`s, or instances of `constructor` where the program declared its own class.

    The class is part of the program only: the text form, and so the metadata, knows fields alone.
    """

    names: tuple[str, ...]
    types: tuple[TypeInformation, ...]
    constructor: type | None = None
    """A dataclass or NamedTuple whose fields these are."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.types):
            raise JobDefinitionError(
                f"A row has {len(self.names)} field names but {len(self.types)} field types. Give one type per name."
            )
        for name in self.names:
            if not isinstance(name, str) or not name:
                raise JobDefinitionError(f"A row's field is named {name!r}. Name it by a non-empty string.")
        if len(set(self.names)) != len(self.names):
            raise JobDefinitionError(f"A row names a field twice: {', '.join(self.names)}. Rename one.")

    def __str__(self) -> str:
        return f"ROW<{', '.join(f'{_quoted(n)} {t}' for n, t in zip(self.names, self.types, strict=True))}>"

    @property
    def arrow_type(self) -> pa.DataType | None:
        return _struct(self.names, self.types)

    @property
    def codec_name(self) -> str:
        return joint_codec(self.types)

    @property
    def immutable(self) -> bool:
        return all(t.immutable for t in self.types) and (self.constructor is None or _frozen(self.constructor))

    def get_field_names(self) -> list[str]:
        return list(self.names)

    def get_field_types(self) -> list[TypeInformation]:
        return list(self.types)

    @property
    def value_class(self) -> type:
        """The class of its values as Headrace makes them."""
        return self.constructor if self.constructor is not None else row_class(self.names, self.makes_plain_rows)

    @property
    def makes_plain_rows(self) -> bool:
        """Whether its rows are of the kind that the garbage collector need not know: none can ever hold itself."""
        return self.constructor is None and all(map(_cannot_refer_back, self.types))

    def make(self) -> Callable[[Iterable[Any]], Any]:
        """A function that builds a value from its fields in order."""
        cls = self.value_class
        if self.constructor is None:
            return row_maker(self.names, self.makes_plain_rows)
        if issubclass(cls, tuple):
            return partial(tuple.__new__, cls)
        if self._by_keyword:
            names = self.names
            return lambda fields: cls(**dict(zip(names, fields, strict=True)))
        return lambda fields: cls(*fields)

    def make_all(self) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
        """A function that builds values from their columns, a column per field: the way a batch becomes records."""
        cls = self.value_class
        if not self.names or self._by_keyword or issubclass(cls, tuple):
            make = self.make()
            return lambda columns: list(map(make, zip(*columns, strict=True)))

        def made(columns: Sequence[Sequence[Any]]) -> list[Any]:
            check_columns(columns)
            return list(map(cls, *columns))

        return made

    @property
    def _by_keyword(self) -> bool:
        cls: Any = self.constructor
        return cls is not None and not issubclass(cls, tuple) and any(f.kw_only for f in dataclasses.fields(cls))

    def take_apart(self) -> Callable[[Any], tuple[Any, ...]]:
        """A function that gives the fields of a value, in order, as a tuple or tuple subclass."""
        if self.constructor is None:
            return values_of  # a tuple of the fields fits as well as a row
        if issubclass(self.constructor, tuple):
            return tuple
        if len(self.names) == 1:
            only = attrgetter(self.names[0])
            return lambda value: (only(value),)
        return attrgetter(*self.names) if self.names else lambda value: ()

    def misfit(self, value: Any) -> str | None:
        if value is None:
            return None
        if self.constructor is not None and not issubclass(self.constructor, tuple):
            if not isinstance(value, self.constructor):
                return f"{short(value)} ({type(value).__name__}) is no {self.constructor.__name__}"
        elif not isinstance(value, tuple | Row):
            return f"{short(value)} ({type(value).__name__}) is no {self}, which is a Row or a tuple"
        elif len(value) != len(self.names):
            return f"{short(value)} has {len(value)} fields instead of {len(self.names)}"
        elif isinstance(value, Row) and type(value).__row_names__ not in (self.names, positional_names(len(value))):
            return f"{short(value)} has the fields {', '.join(type(value).__row_names__)} in this order"
        elif isinstance(value, Row) and type(value).__row_kind__ is not RowKind.INSERT:
            return (
                f"{short(value)} is of kind {type(value).__row_kind__}, which a typed stream or state does not keep. "
                "Leave the type out, or keep the kind in a field"
            )
        for name, t, field in zip(self.names, self.types, self.take_apart()(value), strict=True):
            reason = t.misfit(field)
            if reason is not None:
                return f'field "{name}": {reason}'
        return None


def joint_codec(types: Iterable[TypeInformation]) -> str:
    """Pickle if any of them is pickled."""
    return "pickle" if any(t.codec_name == "pickle" for t in types) else "msgpack"


def _struct(names: tuple[str, ...], types: tuple[TypeInformation, ...]) -> pa.DataType | None:
    arrow = [t.arrow_type for t in types]
    return None if None in arrow else pa.struct(list(zip(names, arrow, strict=True)))


def _cannot_refer_back(t: TypeInformation) -> bool:
    """Whether a value of the type holds plain values alone, which exist before it and cannot change."""
    match t:
        case BasicType() | ListType(is_bytes=True):
            return t.immutable
        case TupleType(types=types):
            return all(map(_cannot_refer_back, types))
        case RowType():
            return t.makes_plain_rows
    return False


def _quoted(name: str) -> str:
    return name if _IDENTIFIER.match(name) else "`" + name.replace("`", "``") + "`"


def _frozen(cls: type) -> bool:
    return issubclass(cls, tuple) or bool(getattr(cls, "__dataclass_params__").frozen)  # noqa: B009
