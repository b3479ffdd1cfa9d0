"""JSON, one value a line: rows of a declared type, or whatever JSON holds."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, BinaryIO

import msgspec

from headrace.connectors.files.formats import FileCursor, FileFormat, Problems, open_unchanged
from headrace.connectors.files.lines import LineCursor
from headrace.connectors.files.split import FileSplit
from headrace.errors import ConfigurationError
from headrace.types.information import BasicType, ListType, MapType, RowType, TupleType, TypeInformation


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


_BASIC: dict[str, Any] = {
    "STRING": str,
    "CHAR": Annotated[str, msgspec.Meta(min_length=1, max_length=1)],
    "BYTE": _whole(8),
    "SHORT": _whole(16),
    "INT": _whole(32),
    "LONG": _whole(64),
    "BIG_INT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BIG_DEC": Decimal,
    "BOOLEAN": bool,
    "INSTANT": Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    "SQL_TIMESTAMP": Annotated[datetime.datetime, msgspec.Meta(tz=False)],
    "SQL_DATE": datetime.date,
    "SQL_TIME": Annotated[datetime.time, msgspec.Meta(tz=False)],
    "ANY": Any,
}


class JsonLinesFormat(FileFormat):
    """With a row type: objects with these fields; a missing one is None, further ones are ignored, another type is an
    error.

    With another type: values of it. Without a type: dicts, lists and the like. Blank lines are passed over.
    """

    name = "JSON lines"

    def __init__(self, type_info: TypeInformation | None = None) -> None:
        self.type_info = type_info
        json_decoder(type_info)  # refuses a type that JSON cannot hold while the program is being written

    def produced_type(self, paths: Sequence[str]) -> TypeInformation | None:
        return self.type_info

    def open(self, split: FileSplit, problems: Problems) -> FileCursor | None:
        file = open_unchanged(split, problems)
        return None if file is None else _JsonCursor(split, file, problems, self.type_info)


class _JsonCursor(LineCursor):
    def __init__(self, split: FileSplit, file: BinaryIO, problems: Problems, type_info: TypeInformation | None) -> None:
        super().__init__(split, file, problems)
        self._decoder = json_decoder(type_info)
        self._finish = json_finisher(type_info)

    def parse(self, lines: list[bytes], first_line: int) -> list[Any]:
        try:
            # Each on its own: `decode_lines` takes two values on a line for two lines, and one on two lines for one.
            return self._finish(list(map(self._decoder.decode, filter(None, lines))))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # one of them is bad: find out which
        values = []
        for number, line in enumerate(lines, first_line):
            if line.strip():
                try:
                    values.append(self._decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    self.problems.bad_record(self.split.path, number, line, str(error))
        return self._finish(values)


@lru_cache(maxsize=256)
def json_decoder(type_info: TypeInformation | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Any if type_info is None else _python_type(type_info, top=True))


def json_finisher(type_info: TypeInformation | None) -> Callable[[list[Any]], list[Any]]:
    if not isinstance(type_info, RowType):
        return lambda values: values
    make, fields = type_info.make(), msgspec.structs.astuple
    return lambda structs: [make(fields(struct)) for struct in structs]


def _python_type(type_info: TypeInformation, top: bool = False) -> Any:
    """What msgspec decodes into: it checks as it decodes, far faster than a look at each value afterwards."""
    if isinstance(type_info, RowType) and top:
        fields = [(f"f{i}", _python_type(t) | None, None) for i, t in enumerate(type_info.types)]
        renamed = {f"f{i}": name for i, name in enumerate(type_info.names)}
        return msgspec.defstruct("JsonRow", fields, rename=renamed, gc=False)
    if isinstance(type_info, BasicType) and type_info.name in _BASIC:
        return _BASIC[type_info.name]
    if isinstance(type_info, ListType) and not type_info.is_bytes:
        return list[_python_type(type_info.element) | None]  # type: ignore[misc]
    if isinstance(type_info, MapType):
        return dict[_python_type(type_info.key), _python_type(type_info.value) | None]  # type: ignore[misc]
    if isinstance(type_info, TupleType):
        return tuple[tuple(_python_type(t) | None for t in type_info.types)]  # type: ignore[misc]
    raise ConfigurationError(
        f"JSON lines cannot be read as {type_info}. Read them without type_info and convert them in a map function."
    )
