"""From the canonical text of a type, as checkpoint metadata keeps it, back to the type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from headrace.errors import JobDefinitionError, UnsupportedFormatError
from headrace.types.kinds import (
    BASIC_NAMES,
    LIST_FORMS,
    BasicType,
    ListType,
    MapType,
    RowType,
    TupleType,
    TypeInformation,
    short,
)

T = TypeVar("T")

_TOKEN: Final = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*)|`((?:[^`]|``)*)`|([<>,]))")
_MAX_DEPTH: Final = 64


def parse(text: str) -> TypeInformation:
    """The type that prints as `text`. Refuses anything else by UnsupportedFormatError.

    A row comes back without the class the program may have declared for it: no file names code to load.
    """
    try:
        return _Reader(text).whole()
    except JobDefinitionError as error:
        raise UnsupportedFormatError(f"The checkpoint names the type {short(text)}, which cannot be: {error}") from None


class _Reader:
    """A reader over the tokens of one text. A token is (kind, text), kind being name, quoted, mark or end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at, stop = 0, len(text.rstrip())
        while at < stop:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.refusal()
            kind = ("name", "quoted", "mark")[(match.lastindex or 1) - 1]
            self.tokens.append((kind, match.group(match.lastindex or 1)))
            at = match.end()
        self.tokens.append(("end", ""))
        self.next = 0

    def refusal(self) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"The checkpoint names the type {short(self.text)}, which this version does not know. "
            "Restore it with the version that wrote it, or start without it."
        )

    def whole(self) -> TypeInformation:
        found = self.one(0)
        if self.take()[0] != "end":
            raise self.refusal()
        return found

    def take(self) -> tuple[str, str]:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def expect(self, mark: str) -> None:
        if self.take() != ("mark", mark):
            raise self.refusal()

    def one(self, depth: int) -> TypeInformation:
        kind, name = self.take()
        if kind != "name" or depth > _MAX_DEPTH:
            raise self.refusal()
        if name in BASIC_NAMES:
            return BasicType(name)
        self.expect("<")
        if name in LIST_FORMS:
            element = self.one(depth + 1)
            self.expect(">")
            return ListType(element, name)
        if name == "MAP":
            key = self.one(depth + 1)
            self.expect(",")
            value = self.one(depth + 1)
            self.expect(">")
            return MapType(key, value)
        if name == "TUPLE":
            return TupleType(tuple(self.several(lambda: self.one(depth + 1))))
        if name == "ROW":
            fields = self.several(lambda: self.field(depth + 1))
            return RowType(tuple(n for n, _ in fields), tuple(t for _, t in fields))
        raise self.refusal()

    def field(self, depth: int) -> tuple[str, TypeInformation]:
        kind, name = self.take()
        if kind == "quoted":
            return name.replace("``", "`"), self.one(depth)
        if kind == "name":
            return name, self.one(depth)
        raise self.refusal()

    def several(self, one: Callable[[], T]) -> list[T]:
        """`a, b, c>`, or `>` at once."""
        if self.tokens[self.next] == ("mark", ">"):
            self.take()
            return []
        found = [one()]
        while (token := self.take()) == ("mark", ","):
            found.append(one())
        if token != ("mark", ">"):
            raise self.refusal()
        return found
