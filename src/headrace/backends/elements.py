"""How the values of one state are let in, held and handed out; the same for both backends.

*Plain* values are held as the objects they are: immutable ones always, mutable ones only if the program
promised `object_reuse`. All others are *packed*: held as bytes of their codec, which makes an independent
copy on the way in and on the way out for half the price of copying an object twice.

A plain value is stored in the form its codec gives back (a DOUBLE is a `float` even if 1 was put in), so
that it does not change its type when it leaves and re-enters memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeAlias

import msgspec
import numpy as np

from headrace.checkpoint.handles import StateShape
from headrace.errors import JobDefinitionError, KeyedStateError, StateConflictError, TypeMismatchError
from headrace.state.codecs import codec_for
from headrace.state.descriptors import MapStateDescriptor, StateDescriptor
from headrace.state.evolution import Converter, NotEvolvable, converter
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor
from headrace.types.information import TupleType, TypeInformation

_WHOLE_BITS = {"BYTE": 8, "SHORT": 16, "INT": 32, "LONG": 64}
_TEXT = "STRING"
_BYTES = "PRIMITIVE_ARRAY<BYTE>"
_DOUBLE = "DOUBLE"
_EXACT: dict[str, type] = {_DOUBLE: float, "BOOLEAN": bool, "BIG_INT": int, _BYTES: bytes}
"""Types of which every object of exactly this class is a value in its stored form already."""

STAMP = Struct(">Q")
Stamped: TypeAlias = tuple[int, Any]
"""(last use in milliseconds, value): what an entry with a time-to-live holds."""


@dataclass(frozen=True, slots=True)
class Elements:
    """The rules for the elements of one state."""

    packed: bool
    exact: type | None
    """A value of exactly this class needs no further look; None if there is no such class."""
    bounds: tuple[int, int] | None
    """The range of a whole-number type, whose `exact` is None."""
    is_text: bool
    """Plain ASCII strings need no further look."""
    admit: Callable[[Any], Any]
    """Check a value given by the program; gives what is to be stored. Raises TypeMismatchError."""
    release: Callable[[Any], Any]
    """What the program gets for a stored value."""
    to_bytes: Callable[[Any], bytes]
    """A stored value as it is written to disk."""
    from_bytes: Callable[[bytes], Any]
    """The stored value for bytes from disk."""
    to_column: Callable[[list[Any]], msgspec.Raw] | None = None
    """Stored values as one msgpack array of what `to_bytes` gives for each, where that is quicker at once."""
    lent: bool = False
    """Stored values are objects that the program holds as well and may change."""


def elements_of(type_info: TypeInformation, where: str, object_reuse: bool) -> Elements:
    """The rules for values of that type; `where` names the state in error messages."""
    codec = codec_for(type_info)
    encode, decode, check = codec.encode, codec.decode, type_info.check
    if type_info.immutable:
        admit = _admission(type_info, encode, decode, where)
        text = str(type_info)
        bits = _WHOLE_BITS.get(text)
        bounds = None if bits is None else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        column = _column_of_doubles if text == _DOUBLE else None
        return Elements(False, _EXACT.get(text), bounds, text == _TEXT, admit, _same, encode, decode, column)
    if object_reuse:

        def checked(value: Any) -> Any:
            check(value, where)
            return value

        return Elements(False, None, None, False, checked, _same, encode, decode, lent=True)

    def pack(value: Any) -> bytes:
        try:
            return encode(value)
        except TypeMismatchError:
            check(value, where)  # the same verdict, but it names the state
            raise

    return Elements(True, None, None, False, pack, decode, _same, _same)


def _same(value: Any) -> Any:
    return value


def stamped_elements(elements: Elements) -> Elements:
    """The rules for values with a time stamp, where `elements` are those of the value. Held as bytes, always:

    last use u64 (milliseconds, big-endian) | value in the codec of its type
    """
    admit, release, to_bytes, from_bytes = elements.admit, elements.release, elements.to_bytes, elements.from_bytes
    pack, unpack, size = STAMP.pack, STAMP.unpack_from, STAMP.size

    def admit_stamped(value: Stamped) -> bytes:
        return pack(value[0]) + to_bytes(admit(value[1]))

    def release_stamped(stored: bytes) -> Stamped:
        return unpack(stored)[0], release(from_bytes(stored[size:]))

    return Elements(True, None, None, False, admit_stamped, release_stamped, _same, _same)


_PACKED_DOUBLE = np.dtype([("head", "S3"), ("number", ">f8")])


def _column_of_doubles(values: list[Any]) -> msgspec.Raw:
    """The msgpack array of binaries, each of which holds a msgpack float: what encoding one by one gives, in one go."""
    column = np.empty(len(values), _PACKED_DOUBLE)
    column["head"] = b"\xc4\x09\xcb"
    column["number"] = values
    return msgspec.Raw(b"\xdd" + len(values).to_bytes(4, "big") + column.tobytes())


def _admission(
    type_info: TypeInformation, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], where: str
) -> Callable[[Any], Any]:
    """A check for immutable values with a short way for what is usual."""
    check = type_info.check
    text = str(type_info)

    def slowly(value: Any) -> Any:
        try:
            return decode(encode(value))
        except TypeMismatchError:
            check(value, where)  # the same verdict, but it names the state
            raise

    exact = _EXACT.get(text)
    if exact is not None:
        return lambda value: value if type(value) is exact else slowly(value)
    bits = _WHOLE_BITS.get(text)
    if bits is not None:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return lambda value: value if type(value) is int and low <= value <= high else slowly(value)
    if text == _TEXT:
        return lambda value: value if type(value) is str and value.isascii() else slowly(value)
    return _flat_tuple_admission(type_info, slowly)


def _flat_tuple_admission(type_info: TypeInformation, slowly: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A short way for tuples of numbers, flags and ASCII text that are in their stored form; else `slowly`."""
    if not isinstance(type_info, TupleType) or not type_info.types:
        return slowly
    tests = [f"type(v) is tuple and len(v) == {len(type_info.types)}"]
    for i, field in enumerate(map(str, type_info.types)):
        if field in _WHOLE_BITS:
            high = 1 << (_WHOLE_BITS[field] - 1)
            tests.append(f"type(v[{i}]) is int and {-high} <= v[{i}] < {high}")
        elif field in ("DOUBLE", "BOOLEAN"):
            tests.append(f"type(v[{i}]) is {_EXACT[field].__name__}")
        elif field == _TEXT:
            tests.append(f"type(v[{i}]) is str and v[{i}].isascii()")
        else:
            return slowly
    # Source made for the type, as codecs do it: a loop over the fields would cost as much as encoding them.
    admit: Callable[[Any], Any] = eval(f"lambda v: v if {' and '.join(tests)} else slowly(v)", {"slowly": slowly})
    return admit


@dataclass(frozen=True, slots=True)
class MapKeys:
    """How keys inside a map state are held.

    Whole numbers, strings and bytes as they are; all others as a one-tuple of their encoding, so that
    -0.0 and 0.0, or a NaN, mean the same entry on both backends.
    """

    admit: Callable[[Any], Any]
    """The stored form of a map key given by the program. Raises TypeMismatchError."""
    release: Callable[[Any], Any]
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]


def map_keys_of(type_info: TypeInformation, where: str) -> MapKeys:
    """The rules for map keys of that type."""
    codec = codec_for(type_info)
    encode, decode, check = codec.encode, codec.decode, type_info.check
    text = str(type_info)
    if text in _WHOLE_BITS or text in (_TEXT, _BYTES, "BIG_INT"):
        admit = _admission(type_info, encode, decode, where)

        def admit_key(key: Any) -> Any:
            if key is None:
                raise _none_key(where)
            return admit(key)

        return MapKeys(admit_key, _same, encode, decode)

    def wrap(key: Any) -> tuple[bytes]:
        if key is None:
            raise _none_key(where)
        check(key, where)
        # A second round gives equal bytes for values that differ only in how they were put in (1 and 1.0 as DOUBLE).
        return (encode(decode(encode(key))),)

    return MapKeys(wrap, lambda stored: decode(stored[0]), lambda stored: stored[0], lambda raw: (raw,))


def _none_key(where: str) -> JobDefinitionError:
    return JobDefinitionError(f"{where}: None cannot be a key of a map. Leave the entry out, or use a key of your own.")


@dataclass(frozen=True, slots=True)
class StateRules:
    """All that a backend needs to know of a state that the program declared."""

    shape: StateShape
    where: str
    elements: Elements
    map_keys: MapKeys | None
    unstamped: Elements | None = None
    """With a time-to-live: the rules of the values alone; `elements` are those of values with a time stamp."""


def rules_of(descriptor: StateDescriptor, uid: str, object_reuse: bool) -> StateRules:
    """The rules of a declared state of operator `uid`."""
    where = f'State "{descriptor.name}" of operator "{uid}"'
    map_keys = map_keys_of(descriptor.key_type, where) if isinstance(descriptor, MapStateDescriptor) else None
    # A folding state is the only one to hold on to its values, so it need not keep them as bytes.
    kept_as_objects = object_reuse or isinstance(descriptor, FoldingReducingDescriptor | FoldingAggregatingDescriptor)
    elements = elements_of(descriptor.element_type, where, kept_as_objects)
    if descriptor.active_ttl is None:
        return StateRules(descriptor.shape, where, elements, map_keys)
    return StateRules(descriptor.shape, where, stamped_elements(elements), map_keys, elements)


def migration_of(uid: str, saved: StateShape, descriptor: StateDescriptor) -> Converter | None:
    """How saved values become those of the declared state; None if they are. StateConflictError if they cannot."""
    try:
        return converter(saved, descriptor.shape, descriptor.element_type)
    except NotEvolvable as error:
        refuse_other_shape(uid, saved, descriptor.shape, restored=True, reason=str(error))
        raise AssertionError("equal shapes need no conversion") from error


def refuse_other_shape(uid: str, known: StateShape, wanted: StateShape, *, restored: bool, reason: str = "") -> None:
    """Raise StateConflictError if one name stands for two shapes."""
    if known == wanted:
        return
    before = "was saved as" if restored else "is already declared as"
    way_out = (
        "Rename the state, or restore into a program that declares it as it was saved."
        if restored
        else "Give one of the two another name."
    )
    if known == msgspec.structs.replace(wanted, type=_other_ttl(wanted.type)):
        then, now = ("without", "with") if _TIMED.fullmatch(wanted.type) else ("with", "without")
        remedy = "Declare it as it was saved, or rename it." if restored else "Use one descriptor for both."
        raise StateConflictError(
            f'State "{wanted.name}" of operator "{uid}" {before} {_text(known)}, {then} a time-to-live, but is now '
            f"declared {now} one. Entries with a time-to-live are stored with a time stamp, so the one cannot be read "
            f"as the other. {remedy}"
        )
    raise StateConflictError(
        f'State "{wanted.name}" of operator "{uid}" {before} {_text(known)} but is now {_text(wanted)}'
        f"{f': {reason}' if reason else ''}. {way_out}"
    )


_TIMED = re.compile(r"TTL<(.*)>", re.DOTALL)


def _other_ttl(type_text: str) -> str:
    """The type with a time-to-live if it has none, and the other way round."""
    timed = _TIMED.fullmatch(type_text)
    return f"TTL<{type_text}>" if timed is None else timed[1]


def _text(shape: StateShape) -> str:
    codec = "" if shape.codec == "msgpack" else f" ({shape.codec})"
    return f"{shape.kind} state of {shape.type}{codec}"


def without_key(where: str) -> KeyedStateError:
    """The error for a state that is used where no record's key is set."""
    return KeyedStateError(
        f"{where} was used without a key. Use keyed state only while a record or timer of a keyed stream is handled "
        "(after key_by; not in open() or close())."
    )


def reduce_function_of(function: Any) -> Callable[[Any, Any], Any]:
    """The callable behind a `ReduceFunction` or a plain function of two values."""
    reduce = getattr(function, "reduce", None)
    chosen = reduce if reduce is not None else function
    if not callable(chosen):
        raise JobDefinitionError(
            f"A reducing state needs a ReduceFunction or a function of two values, not {function!r}."
        )
    return chosen  # type: ignore[no-any-return]
