"""Rows: the light named records of typed streams.

A row is a tuple whose class is made once per tuple of field names. Fields are read by name
(`r.id`, `r["id"]`) or position (`r[0]`, `r[1:]`); two rows are equal if their values are, names aside.
A field whose name is also a method (`count`, `as_dict`) hides it on such rows; `Row.as_dict(r)` still works.
"""

from __future__ import annotations

from _collections import _tuplegetter  # type: ignore[import-not-found]  # what namedtuple reads fields with, in C
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

_new = tuple.__new__
_at = tuple.__getitem__


class Row(tuple[Any, ...]):
    """A row. `Row(id="a", temperature=1.0)` names its fields, `Row("a", 1.0)` calls them f0, f1."""

    __slots__ = ()

    # Dunder names, so that no field can hide them.
    __row_names__: ClassVar[tuple[str, ...]] = ()
    __row_positions__: ClassVar[dict[str, int]] = {}

    def __new__(cls, /, *values: Any, **fields: Any) -> Row:
        if cls is Row:
            if values and fields:
                raise TypeError("A Row takes values by position or by name, not both: Row(id='a', temperature=1.0).")
            names = tuple(fields) if fields else positional_names(len(values))
            return _new(row_class(names), fields.values() if fields else values)
        names = cls.__row_names__
        if fields:
            values += tuple(fields.pop(name) for name in names[len(values) :] if name in fields)
        if fields or len(values) != len(names):
            raise TypeError(f"This row has the fields {', '.join(names)}. Give each of them once.")
        return _new(cls, values)

    def __getitem__(self, item: Any) -> Any:
        if type(item) is str:
            try:
                return _at(self, type(self).__row_positions__[item])
            except KeyError:
                raise KeyError(f"{item!r}; the row has the fields {', '.join(type(self).__row_names__)}") from None
        return _at(self, item)

    def as_dict(self) -> dict[str, Any]:
        """Fields by name, in order."""
        return dict(zip(type(self).__row_names__, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(type(self).__row_names__, self, strict=True))})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, so another process makes it again from the names.
        return _rebuild, (type(self).__row_names__, tuple(self))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@lru_cache(maxsize=4096)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The class of all rows with these fields, made at first use."""
    if len(set(names)) != len(names):
        raise ValueError(f"A row names a field twice: {', '.join(names)}. Rename one.")
    body: dict[str, Any] = {
        "__slots__": (),
        "__doc__": f"A row with the fields {', '.join(names)}.",
        "__module__": __name__,
        "__row_names__": names,
        "__row_positions__": {name: i for i, name in enumerate(names)},
        "__match_args__": names,
    }
    for i, name in enumerate(names):
        # A field called `__class__` or the like is read as r["__class__"]: as an attribute it would break the class.
        if not (name.startswith("__") and name.endswith("__")):
            body[name] = _tuplegetter(i, f'Field "{name}".')
    return type("Row", (Row,), body)


@lru_cache(maxsize=256)
def positional_names(n: int) -> tuple[str, ...]:
    """f0, f1, …: what fields are called that nobody named."""
    return tuple(f"f{i}" for i in range(n))


def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    """A fast function from an iterable of values, whose number is not checked, to a row."""
    return partial(_new, row_class(names))


def make_rows(names: tuple[str, ...], columns: Sequence[Iterable[Any]]) -> list[Row]:
    """Rows from columns of equal length; the way a batch becomes records, so it is kept in C throughout."""
    return list(map(row_maker(names), zip(*columns, strict=True)))


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return _new(row_class(names), values)
