"""Rows: the light named records of typed streams.

A row is a msgspec struct whose class is made once per tuple of field names. Fields are read by name
(`r.id`, `r["id"]`) or position (`r[0]`, `r[1:]`). In all else a row behaves as the tuple of its values, which it
equals and hashes as, names aside; but it is no `tuple` to isinstance. It cannot be changed.

A field whose name is also a method (`count`, `as_dict`) hides it on such rows; `Row.as_dict(r)` still works.

There are two classes per tuple of names. *Plain* rows are unknown to the garbage collector, which makes them smaller
and a third faster to create; they are made where the type of the fields rules out that a row holds itself. All others
(`Row(...)` in a program, rows with lists, maps or ANY) are *open*: the collector sees those that hold containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

import msgspec

_values: Final[Callable[[Any], tuple[Any, ...]]] = msgspec.structs.astuple
"""The values of a row as a tuple, in C."""


_class_of: Final[Any] = object.__dict__["__class__"]
"""By it a row gets the class of another kind: its own `__setattr__` refuses any change."""


class RowKind(Enum):
    """What a row says of a changelog. Rows are insertions unless told otherwise."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class _Constructor:
    """What `Row(...)` calls. Not a part of Row itself, as a struct's bases may not have a `__new__` of their own."""

    __slots__ = ()

    def __new__(cls, /, *values: Any, **fields: Any) -> Row:
        if not fields:
            return row_class(positional_names(len(values)))(*values)
        if values:
            raise TypeError("A Row takes values by position or by name, not both: Row(id='a', temperature=1.0).")
        return row_class(tuple(fields))(*fields.values())


class Row(_Constructor):
    """A row. `Row(id="a", temperature=1.0)` names its fields, `Row("a", 1.0)` calls them f0, f1."""

    __slots__ = ()

    # Dunder names, so that no field can hide them.
    __row_names__: ClassVar[tuple[str, ...]] = ()
    __row_attributes__: ClassVar[dict[str, str]] = {}
    """The attribute that holds a field: it has the field's name wherever that may name an attribute."""
    __row_plain__: ClassVar[bool] = False
    __row_kind__: ClassVar[RowKind] = RowKind.INSERT

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, item: Any) -> Any:
        if type(item) is str:
            try:
                return getattr(self, type(self).__row_attributes__[item])
            except KeyError:
                raise KeyError(f"{item!r}; the row has the fields {', '.join(type(self).__row_names__)}") from None
        return _values(self)[item]

    def __iter__(self) -> Iterator[Any]:
        return iter(_values(self))

    def __len__(self) -> int:
        return len(type(self).__row_names__)

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, in order."""
        return dict(zip(type(self).__row_names__, _values(self), strict=True))

    @staticmethod
    def of_kind(row_kind: RowKind, *values: Any, **fields: Any) -> Row:
        """A row of that kind, otherwise as `Row(...)` makes it."""
        row = Row(*values, **fields)
        Row.set_row_kind(row, row_kind)
        return row

    def get_row_kind(self) -> RowKind:
        return type(self).__row_kind__

    def set_row_kind(self, row_kind: RowKind) -> None:
        """The only thing about a row that can be changed. Rows of other kinds travel on streams without a type."""
        cls = type(self)
        _class_of.__set__(self, row_class(cls.__row_names__, cls.__row_plain__, RowKind(row_kind)))

    def set_field_names(self, field_names: Sequence[str]) -> NoReturn:
        """PyFlink's way to name the fields of a row afterwards."""
        raise TypeError(
            f"The fields of {self!r} cannot be renamed, for a row never changes. Make another with these names: "
            f"row = Row(**dict(zip({list(field_names)!r}, row)))."
        )

    def __call__(self, *values: Any) -> Row:
        """A row of strings names the fields of others: `Person = Row("name", "age")`, then `Person("Ann", 32)`."""
        names = _values(self)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"{self!r} holds no field names, so it cannot make rows. Write Row(name='Ann', age=32).")
        if len(values) != len(names):
            raise TypeError(f"A row of the fields {', '.join(names)} got {len(values)} values.")
        return row_class(names)(*values)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in Row.as_dict(self).items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, so another process makes it again from the names.
        cls = type(self)
        if cls.__row_kind__ is RowKind.INSERT:
            return _rebuild, (cls.__row_names__, _values(self), cls.__row_plain__)
        return _rebuild, (cls.__row_names__, _values(self), cls.__row_plain__, cls.__row_kind__)

    # What a tuple can do. Structs have comparisons of their own, so none may be left to them.

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return _values(self) == _values(other)
        return _values(self) == other if isinstance(other, tuple) else NotImplemented

    def __ne__(self, other: object) -> bool:
        if isinstance(other, Row):
            return _values(self) != _values(other)
        return _values(self) != other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __lt__(self, other: Any) -> bool:
        return _values(self) < values_of(other) if isinstance(other, Row | tuple) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return _values(self) <= values_of(other) if isinstance(other, Row | tuple) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return _values(self) > values_of(other) if isinstance(other, Row | tuple) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return _values(self) >= values_of(other) if isinstance(other, Row | tuple) else NotImplemented

    def __add__(self, other: Any) -> tuple[Any, ...]:
        return _values(self) + values_of(other) if isinstance(other, Row | tuple) else NotImplemented

    def __radd__(self, other: Any) -> tuple[Any, ...]:
        return other + _values(self) if isinstance(other, tuple) else NotImplemented

    def __contains__(self, value: Any) -> bool:
        return value in _values(self)

    def __reversed__(self) -> Iterator[Any]:
        return iter(_values(self)[::-1])

    def count(self, value: Any) -> int:
        """How many fields hold the value."""
        return _values(self).count(value)

    def index(self, value: Any, *bounds: int) -> int:
        """The first position that holds the value; ValueError if none does."""
        return _values(self).index(value, *bounds)


# A row matches `case [id, temperature]` as a tuple does.
Sequence.register(Row)

_CLASS_NAMES: Final = {
    (plain, kind): ("PlainRow" if plain else "Row") + ("" if kind is RowKind.INSERT else str(kind))
    for plain in (False, True)
    for kind in RowKind
}
"""What the qualified name of a row class begins with."""

_classes: WeakValueDictionary[tuple[tuple[str, ...], bool, RowKind], type[Row]] = WeakValueDictionary()
"""All row classes in use. The cache below may forget one, but while a row of it lives it is found again here."""


@lru_cache(maxsize=4096)
def row_class(names: tuple[str, ...], plain: bool = False, kind: RowKind = RowKind.INSERT) -> type[Row]:
    """The class of all rows with these fields and of this kind, made at first use. Its values come in order, or by
    attribute.

    `plain` rows are never looked at by the garbage collector: a reference cycle through one is never freed. Only
    for fields that hold nothing but plain values; a plain and an open row of the same values are equal.
    """
    known = _classes.get((names, plain, kind))
    if known is not None:
        return known
    if len(set(names)) != len(names):
        raise ValueError(f"A row names a field twice: {', '.join(names)}. Rename one.")
    attributes = {name: _attribute(name, i, names) for i, name in enumerate(names)}
    made: Any = msgspec.defstruct(
        "Row",
        list(attributes.values()),
        bases=(Row, msgspec.Struct),
        module=__name__,
        namespace={
            "__row_names__": names,
            "__row_attributes__": attributes,
            "__row_plain__": plain,
            "__row_kind__": kind,
            # Pickle finds the class under this name: see `__getattr__` below.
            "__qualname__": f"{_CLASS_NAMES[plain, kind]}({','.join(map(_quoted, names))})",
        },
        frozen=True,
        gc=not plain,
        array_like=True,  # msgspec packs a row as it packs a tuple
    )
    for name, attribute in attributes.items():
        # A field called `__class__` or the like is read as r["__class__"]: as an attribute it would break the class.
        if name != attribute and not (name.startswith("__") and name.endswith("__")):
            setattr(made, name, made.__dict__[attribute])
    return _classes.setdefault((names, plain, kind), made)


def _attribute(name: str, position: int, names: tuple[str, ...]) -> str:
    """Slots must be identifiers, and Python renames those that begin with two underscores."""
    if name.isidentifier() and not name.startswith("__"):
        return name
    attribute = f"_{position}"
    while attribute in names:
        attribute += "_"
    return attribute


def _quoted(name: str) -> str:
    # Pickle takes a dot for a step into a class.
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")


def __getattr__(name: str) -> type[Row]:
    """`Row(id,temperature)`, the qualified name of a row class, is the class: by it classes travel to other processes.

    Python calls this for names the module does not have.
    """
    start, parenthesis, listed = name.partition("(")
    found = next((key for key, known in _CLASS_NAMES.items() if known == start), None)
    if found is None or not parenthesis or not listed.endswith(")"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    names = listed[:-1].split(",") if len(listed) > 1 else []
    return row_class(tuple(unquote(n, errors="surrogatepass") for n in names), *found)


@lru_cache(maxsize=256)
def positional_names(n: int) -> tuple[str, ...]:
    """f0, f1, …: what fields are called that nobody named."""
    return tuple(f"f{i}" for i in range(n))


def values_of(row: Any) -> tuple[Any, ...]:
    """The values of a row or tuple as a plain tuple."""
    return _values(row) if isinstance(row, Row) else tuple(row)


def row_maker(names: tuple[str, ...], plain: bool = False) -> Callable[[Iterable[Any]], Row]:
    """A function from an iterable of values, one per name, to a row; for `plain` see `row_class`."""
    cls = row_class(names, plain)
    return lambda values: cls(*values)


def make_rows(names: tuple[str, ...], columns: Sequence[Sequence[Any]], plain: bool = False) -> list[Row]:
    """Rows from columns of equal length; the way a batch becomes records, so it is kept in C throughout."""
    check_columns(columns)
    return list(map(row_class(names, plain), *columns)) if columns else []


def check_columns(columns: Sequence[Sequence[Any]]) -> None:
    """Refuse columns of unequal length, which `map` would cut to the shortest."""
    if len(set(map(len, columns))) > 1:
        raise ValueError(f"Columns of unequal length make no rows: {', '.join(map(str, map(len, columns)))}.")


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...], plain: bool, kind: RowKind = RowKind.INSERT) -> Row:
    return row_class(names, plain, kind)(*values)
