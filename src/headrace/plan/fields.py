"""Finding out that a function merely returns fields of its record, so that whole columns can be used instead.

`lambda r: r.id` is called once, while the plan is built, with a probe in place of the record. The probe answers
only "give me a field"; anything else makes the function opaque, and it is called for every record as usual. A
function that calls, branches or stores is opaque without being asked: what it does beside returning fields counts.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from headrace.errors import JobDefinitionError
from headrace.types.information import RowType, TupleType, TypeInformation, Types


@dataclass(frozen=True, slots=True)
class FieldOf:
    """Reads one field, by name or position: of a row, a mapping, a tuple or an object. Travels to tasks."""

    field: str | int

    def __call__(self, value: Any) -> Any:
        if isinstance(self.field, int) or isinstance(value, Mapping):
            return value[self.field]
        return getattr(value, self.field)

    def __str__(self) -> str:
        return str(self.field)


@dataclass(frozen=True, slots=True)
class FieldsOf:
    """Reads several fields as a tuple."""

    fields: tuple[FieldOf, ...]

    def __call__(self, value: Any) -> tuple[Any, ...]:
        return tuple(field(value) for field in self.fields)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))})"


def field_names(type_info: TypeInformation | None) -> tuple[str, ...]:
    """Names of the fields of a typed record, which are those of its Arrow columns; none for any other type."""
    return type_info.names if isinstance(type_info, RowType | TupleType) else ()


def field_type(type_info: TypeInformation | None, name: str) -> TypeInformation | None:
    """Type of that field, where it is known."""
    if isinstance(type_info, RowType | TupleType) and name in type_info.names:
        return type_info.types[type_info.names.index(name)]
    return None


def resolve_field(type_info: TypeInformation | None, field: str | int, call: str) -> str | None:
    """Check a field that the program names against the type of the records.

    Returns the name of its column, or None where the records have no declared type. `call` names the place.
    """
    if isinstance(field, bool) or not isinstance(field, str | int):
        raise JobDefinitionError(f"{call} got {field!r} for a field. Give a field's name or position.")
    if type_info is None:
        return None
    names = field_names(type_info)
    if not names:
        if type_info == Types.ANY() or type_info.codec_name == "pickle":
            return None
        raise JobDefinitionError(f"{call} wants field {field!r}, but the records are {type_info}, which has no fields.")
    found = _named(names, field, by_name=isinstance(type_info, RowType))
    if found is not None:
        return found
    if isinstance(type_info, RowType):
        has = f"Their fields are {', '.join(names)}."
    else:
        has = f"They are tuples: give a position from 0 to {len(names) - 1}."
    raise JobDefinitionError(f"{call} wants field {field!r}, which the records do not have. {has}")


def traced_fields(
    selector: Callable[..., Any], type_info: TypeInformation | None, further_arguments: int = 0
) -> tuple[tuple[str, ...], bool] | None:
    """The fields that `selector(record, ...)` returns and whether it is one field itself; None if it is opaque.

    `type_info` is the type of the records: without named fields there is nothing to find. `further_arguments` is how
    many arguments follow the record (a timestamp assigner has one); none of them may be used.
    """
    names = field_names(type_info)
    if not names or not _only_reads(selector):
        return None
    trace = _Trace(names, by_name=isinstance(type_info, RowType))
    try:
        result = selector(_Probe(trace), *(_Field(trace, "") for _ in range(further_arguments)))
    except Exception:
        return None
    if trace.spoilt:
        return None
    single = type(result) is not tuple
    fields = [_field_name(part) for part in ((result,) if single else result)]
    found = tuple(name for name in fields if name)
    return (found, single) if found and len(found) == len(fields) else None


_ACTS = ("CALL", "JUMP", "FOR_ITER", "STORE_", "DELETE_", "IMPORT", "RAISE", "YIELD", "SEND", "MAKE_FUNCTION", "WITH")


def _only_reads(selector: Callable[..., Any]) -> bool:
    """Whether the function's own code neither calls, branches nor stores."""
    if isinstance(selector, type):
        return False
    function = getattr(selector, "__func__", selector)
    code = getattr(function, "__code__", None)
    if code is None:
        # Readers made in C (attrgetter, itemgetter) do nothing else; other objects hide their code in __call__.
        return type(selector).__module__ == "operator"
    return isinstance(code, CodeType) and not any(
        act in instruction.opname for instruction in dis.get_instructions(code) for act in _ACTS
    )


def _named(names: Sequence[str], key: Any, by_name: bool) -> str | None:
    if type(key) is str:
        return key if by_name and key in names else None
    if type(key) is int and -len(names) <= key < len(names):
        return names[key]
    return None


class _Opaque(Exception):
    """The function did something else than returning fields."""


class _Trace:
    """What happened during one call."""

    __slots__ = ("by_name", "names", "spoilt")

    def __init__(self, names: tuple[str, ...], by_name: bool) -> None:
        self.names = names
        self.by_name = by_name
        self.spoilt = False

    def spoil(self) -> _Opaque:
        # Remembered, in case the function swallows the exception.
        self.spoilt = True
        return _Opaque()

    def field(self, key: Any) -> _Field:
        name = _named(self.names, key, self.by_name)
        if name is None:
            raise self.spoil()
        return _Field(self, name)


def _refuse(self: Any, *_: Any, **__: Any) -> Any:
    raise object.__getattribute__(self, "_trace").spoil()


_KEPT = {
    *("__new__", "__init__", "__init_subclass__", "__subclasshook__", "__class__", "__class_getitem__", "__doc__"),
    *("__getattribute__", "__getattr__", "__getitem__"),
}
_REFUSED = {
    *(name for kind in (int, float, complex, str, bytes, list, dict, set) for name in dir(kind) if name[:2] == "__"),
    *("__call__", "__matmul__", "__rmatmul__", "__enter__", "__exit__", "__next__", "__fspath__", "__bytes__"),
} - _KEPT


class _Field:
    """Stands for the value of a field (or, without a name, for a value that must not be used)."""

    __slots__ = ("_name", "_trace")

    def __init__(self, trace: _Trace, name: str) -> None:
        object.__setattr__(self, "_trace", trace)
        object.__setattr__(self, "_name", name)

    __getattribute__ = _refuse
    __getitem__ = _refuse


class _Probe:
    """Stands for the record: gives fields and nothing else."""

    __slots__ = ("_trace",)

    def __init__(self, trace: _Trace) -> None:
        object.__setattr__(self, "_trace", trace)

    def __getattribute__(self, name: str) -> Any:
        trace: _Trace = object.__getattribute__(self, "_trace")
        return trace.field(name)

    def __getitem__(self, key: Any) -> Any:
        trace: _Trace = object.__getattribute__(self, "_trace")
        return trace.field(key)


for _name in _REFUSED:
    setattr(_Field, _name, _refuse)
    setattr(_Probe, _name, _refuse)


def _field_name(value: Any) -> str | None:
    name = object.__getattribute__(value, "_name") if type(value) is _Field else None
    return name or None
