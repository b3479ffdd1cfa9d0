"""Which changes of a state's type a program may make between two runs, and how saved values follow.

    a row gains a field        its default, where the program's class has one; else None
    a row loses a field        the field is left behind
    a row's fields move        they are matched by name
    a number widens            BYTE → SHORT → INT → LONG → BIG_INT, FLOAT → DOUBLE
    CHAR becomes STRING
    inside of lists, the values of maps, tuples of the same length and rows: the same rules

Everything else is refused: to read bytes of one type as another would make up values. A renamed field is one lost and
one gained. Keys of a map do not change, as their bytes are where an entry is found.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from headrace.checkpoint.handles import StateShape
from headrace.state.codecs import codec_for
from headrace.types.information import TypeInformation
from headrace.types.kinds import BasicType, ListType, MapType, RowType, TupleType
from headrace.types.text import parse

Converter: TypeAlias = Callable[[bytes], bytes]
"""The bytes of a value as it was saved to its bytes as the program now declares it."""

_Adapt: TypeAlias = Callable[[Any], Any]

_WIDENING = (("BYTE", "SHORT", "INT", "LONG", "BIG_INT"), ("FLOAT", "DOUBLE"), ("CHAR", "STRING"))
_TIMED = re.compile(r"TTL<(.*)>", re.DOTALL)
_STAMP_SIZE = 8
"""With a time-to-live every value begins with the time of its last use."""


class NotEvolvable(Exception):
    """The change is none of those above; the message says which part of the type it is about."""


def converter(saved: StateShape, wanted: StateShape, element_type: TypeInformation) -> Converter | None:
    """How a saved value becomes one of the declared type; None if its bytes can stay as they are.

    `element_type`: what the program declares for a value, an element or an accumulator; with its classes, whose
    defaults count.
    """
    if saved == wanted:
        return None
    if saved.kind != wanted.kind:
        raise NotEvolvable(f"a {saved.kind} state cannot become a {wanted.kind} state")
    then, now = _TIMED.fullmatch(saved.type), _TIMED.fullmatch(wanted.type)
    if (then is None) != (now is None):
        raise NotEvolvable("a time-to-live cannot be added to or taken from a state that has entries")
    old = parse(saved.type if then is None else then[1])
    new = element_type
    if saved.kind == "map":
        whole = parse(wanted.type if now is None else now[1])
        assert isinstance(whole, MapType)
        if not isinstance(old, MapType) or old.key != whole.key:
            raise NotEvolvable(f"keys of a map cannot change ({old} to {whole})")
        old = old.value
    if saved.codec != wanted.codec:
        raise NotEvolvable(f"it was saved by {saved.codec} and would now be read by {wanted.codec}")
    adapt = _adapter(old, new, "")
    decode, encode = codec_for(old).decode, codec_for(_plain(new)).encode
    if then is None:
        return lambda data: encode(_kept_none(adapt, decode(data)))
    return lambda data: data[:_STAMP_SIZE] + encode(_kept_none(adapt, decode(data[_STAMP_SIZE:])))


def _adapter(old: TypeInformation, new: TypeInformation, where: str) -> _Adapt:
    """A function from values of the old type to values of the new one without classes of the program."""
    if str(old) == str(new):
        return _same
    match old, new:
        case BasicType(name=before), BasicType(name=after):
            for ladder in _WIDENING:
                if before in ladder and after in ladder and ladder.index(before) < ladder.index(after):
                    return _same
        case RowType(), RowType():
            return _row_adapter(old, new, where)
        case TupleType(types=before_types), TupleType(types=after_types) if len(before_types) == len(after_types):
            adapts = [
                _adapter(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(before_types, after_types, strict=True))
            ]
            return lambda value: tuple(_kept_none(f, x) for f, x in zip(adapts, value, strict=True))
        case ListType(form=form), ListType(form=other) if form == other and not (old.is_bytes or new.is_bytes):
            element = _adapter(old.element, new.element, f"{where}[]")
            return lambda value: [_kept_none(element, x) for x in value]
        case MapType(), MapType() if str(old.key) == str(new.key):
            inner = _adapter(old.value, new.value, f"{where}[…]")
            return lambda value: {k: _kept_none(inner, x) for k, x in value.items()}
    raise NotEvolvable(f"{where.removeprefix('.') or 'its type'} would change from {old} to {new}")


def _row_adapter(old: RowType, new: RowType, where: str) -> _Adapt:
    if not set(old.names) & set(new.names):
        raise NotEvolvable(f"{where.removeprefix('.') or 'its row'} keeps none of its fields ({', '.join(old.names)})")
    makers: list[Callable[[Any], Any]] = []
    for name, type_info in zip(new.names, new.types, strict=True):
        if name in old.names:
            adapt = _adapter(old.types[old.names.index(name)], type_info, f"{where}.{name}")
            makers.append(_field(old.names.index(name), adapt))
        else:
            makers.append(_default(new, name))
    apart, make = old.take_apart(), _plain_row(new).make()

    def adapted(value: Any) -> Any:
        fields = apart(value)
        return make([maker(fields) for maker in makers])

    return adapted


def _field(index: int, adapt: _Adapt) -> Callable[[Any], Any]:
    return lambda fields: _kept_none(adapt, fields[index])


def _default(row: RowType, name: str) -> Callable[[Any], Any]:
    """What a field gets that was not saved."""
    cls = row.constructor
    if cls is not None and dataclasses.is_dataclass(cls):
        field = next((f for f in dataclasses.fields(cls) if f.name == name), None)
        if field is not None and field.default is not dataclasses.MISSING:
            default = field.default
            return lambda fields: default
        if field is not None and field.default_factory is not dataclasses.MISSING:
            factory = field.default_factory
            return lambda fields: factory()
    defaults = getattr(cls, "_field_defaults", {})
    return lambda fields: defaults.get(name)


def _plain(type_info: TypeInformation) -> TypeInformation:
    """The same type without classes of the program: its text and back, as metadata would have it."""
    return parse(str(type_info))


def _plain_row(row: RowType) -> RowType:
    plain = _plain(row)
    assert isinstance(plain, RowType)
    return plain


def _same(value: Any) -> Any:
    return value


def _kept_none(adapt: _Adapt, value: Any) -> Any:
    return None if value is None else adapt(value)
