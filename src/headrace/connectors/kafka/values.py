"""Between bytes of a Kafka record and values of a stream, both ways.

SimpleStringSchema()                      text
RawBytesSchema()                          bytes as they are
JsonRowDeserializationSchema(type_info)   JSON objects as rows; without a type, dicts and the like
JsonRowSerializationSchema()              rows, dicts and plain values as JSON
AvroRowDeserializationSchema(schema)      Avro records (no header, as Flink's) as rows; needs fastavro
AvroRowSerializationSchema(schema)        rows or dicts as Avro records
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from headrace.connectors.files.encoders import plain_json
from headrace.connectors.files.json_lines import json_decoder, json_finisher
from headrace.connectors.kafka.json_schema import type_of_json_schema
from headrace.errors import ConfigurationError, MissingDependencyError, RecordError
from headrace.types.information import RowType, TypeInformation, TypeLike, Types, type_of
from headrace.types.rows import Row


class DeserializationSchema(ABC):
    """Bytes to values. Travels to the tasks; may keep caches that it makes there."""

    skips_bad_records: bool = False
    """Whether bad records are left out, even if the source would fail."""

    @property
    def produced_type(self) -> TypeInformation | None:
        """Type of the values, or None for any Python object."""
        return None

    @abstractmethod
    def deserialize(self, value: bytes) -> Any:
        """One value. Whatever it raises makes the record a bad one."""

    def deserialize_all(self, values: Sequence[bytes]) -> list[Any]:
        """Several at once. If it raises, each is tried alone to find the bad one."""
        return list(map(self.deserialize, values))


class SerializationSchema(ABC):
    """Values to bytes."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes | None:
        """The bytes of one value; None for none (as a record's value: a tombstone)."""


class SimpleStringSchema(DeserializationSchema, SerializationSchema):
    """Text, in and out."""

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = charset
        try:
            "".encode(charset)
        except LookupError:
            raise ConfigurationError(f"SimpleStringSchema does not know the charset {charset!r}.") from None

    @property
    def produced_type(self) -> TypeInformation:
        return Types.STRING()

    def deserialize(self, value: bytes) -> str:
        return value.decode(self.charset)

    def deserialize_all(self, values: Sequence[bytes]) -> list[Any]:
        charset = self.charset
        return [value.decode(charset) for value in values]

    def serialize(self, value: Any) -> bytes:
        return (value if type(value) is str else str(value)).encode(self.charset)


class RawBytesSchema(DeserializationSchema, SerializationSchema):
    """Bytes, in and out, untouched."""

    @property
    def produced_type(self) -> TypeInformation:
        return type_of(bytes)

    def deserialize(self, value: bytes) -> bytes:
        return value

    def deserialize_all(self, values: Sequence[bytes]) -> list[Any]:
        return list(values)

    def serialize(self, value: Any) -> bytes | None:
        if value is not None and not isinstance(value, bytes):
            raise RecordError(
                f"RawBytesSchema writes bytes, and got a {type(value).__name__}. "
                "Make bytes of it in a map function, or use SimpleStringSchema or JsonRowSerializationSchema."
            )
        return value


class JsonRowDeserializationSchema(DeserializationSchema):
    """With a row type: objects with these fields; a missing one is None, further ones are ignored, another type is a
    bad record. Without a type: dicts, lists and the like.

    fail_on_missing_field: an object that lacks a field is a bad record too.
    ignore_parse_errors: bad records are left out and counted, whatever the source does with those of other schemas.
    """

    def __init__(
        self,
        type_info: TypeLike | None = None,
        *,
        fail_on_missing_field: bool = False,
        ignore_parse_errors: bool = False,
    ) -> None:
        self.type_info = None if type_info is None else type_of(type_info)
        json_decoder(self.type_info)  # refuses a type that JSON cannot hold while the program is being written
        self.fail_on_missing_field = fail_on_missing_field
        self.skips_bad_records = ignore_parse_errors
        if fail_on_missing_field and not isinstance(self.type_info, RowType):
            raise ConfigurationError("fail_on_missing_field goes with a row type, whose fields can be missing.")

    @staticmethod
    def builder() -> _JsonBuilder:
        return _JsonBuilder()

    @property
    def produced_type(self) -> TypeInformation | None:
        return self.type_info

    def deserialize(self, value: bytes) -> Any:
        if self.fail_on_missing_field:
            assert isinstance(self.type_info, RowType)
            given = msgspec.json.decode(value)
            missing = [name for name in self.type_info.names if not isinstance(given, dict) or name not in given]
            if missing:
                raise RecordError(f"A JSON object lacks {', '.join(missing)}.")
        return json_finisher(self.type_info)([json_decoder(self.type_info).decode(value)])[0]

    def deserialize_all(self, values: Sequence[bytes]) -> list[Any]:
        if self.fail_on_missing_field:
            return list(map(self.deserialize, values))
        # Not joined and read as lines: it would not be faster, and where a record holds two values and another none,
        # the number would be right.
        return json_finisher(self.type_info)(list(map(json_decoder(self.type_info).decode, values)))


class _JsonBuilder:
    """PyFlink's way to say it."""

    def __init__(self) -> None:
        self._type: TypeLike | None = None
        self._fail_on_missing = False
        self._ignore_errors = False

    def type_info(self, type_info: TypeLike) -> _JsonBuilder:
        self._type = type_info
        return self

    def json_schema(self, json_schema: str) -> _JsonBuilder:
        """The type of a JSON schema: objects, arrays and plain values."""
        self._type = type_of_json_schema(json_schema)
        return self

    def fail_on_missing_field(self) -> _JsonBuilder:
        self._fail_on_missing = True
        return self

    def ignore_parse_errors(self) -> _JsonBuilder:
        self._ignore_errors = True
        return self

    def build(self) -> JsonRowDeserializationSchema:
        return JsonRowDeserializationSchema(
            self._type, fail_on_missing_field=self._fail_on_missing, ignore_parse_errors=self._ignore_errors
        )


class JsonRowSerializationSchema(SerializationSchema):
    """JSON without line ends; rows become objects. JSON has no NaN and no infinity: they become null."""

    def __init__(self, type_info: TypeLike | None = None) -> None:
        self.type_info = None if type_info is None else type_of(type_info)

    @staticmethod
    def builder() -> _JsonOutBuilder:
        return _JsonOutBuilder()

    def serialize(self, value: Any) -> bytes:
        try:
            return _json.encode(plain_json(value))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RecordError(
                f"A record cannot be written as JSON: {error}. "
                "Turn it into a row or dict of plain values in a map function."
            ) from error


_json = msgspec.json.Encoder()


class _JsonOutBuilder:
    """PyFlink's way to say it."""

    def __init__(self) -> None:
        self._type: TypeLike | None = None

    def with_type_info(self, type_info: TypeLike) -> _JsonOutBuilder:
        self._type = type_info
        return self

    def build(self) -> JsonRowSerializationSchema:
        return JsonRowSerializationSchema(self._type)


class _Avro:
    """An Avro schema, parsed where it is used: what travels is its text."""

    def __init__(self, avro_schema_string: str) -> None:
        self.text = avro_schema_string
        _fastavro(type(self).__name__)
        try:
            self._parsed  # noqa: B018 - refuses a schema that is none while the program is being written
        except Exception as error:
            raise ConfigurationError(f"{type(self).__name__} got no Avro schema: {error}") from None

    @cached_property
    def _parsed(self) -> Any:
        return _fastavro(type(self).__name__).parse_schema(json.loads(self.text))

    @cached_property
    def row_type(self) -> RowType | None:
        """Rows for a record schema; its fields have the types of the schema as far as those are basic."""
        found = _avro_type(self._parsed)
        return found if isinstance(found, RowType) else None

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text}


class AvroRowDeserializationSchema(_Avro, DeserializationSchema):
    """Single Avro values without a header. A record becomes a row, anything else what fastavro gives."""

    @property
    def produced_type(self) -> TypeInformation | None:
        return self.row_type

    def deserialize(self, value: bytes) -> Any:
        return self._finish(_fastavro("Avro").schemaless_reader(io.BytesIO(value), self._parsed))

    def deserialize_all(self, values: Sequence[bytes]) -> list[Any]:
        read, parsed, finish = _fastavro("Avro").schemaless_reader, self._parsed, self._finish
        return [finish(read(io.BytesIO(value), parsed)) for value in values]

    @cached_property
    def _finish(self) -> Callable[[Any], Any]:
        row_type = self.row_type
        if row_type is None:
            return lambda decoded: decoded
        make, names = row_type.make(), row_type.names
        return lambda decoded: make(tuple(decoded[name] for name in names))


class AvroRowSerializationSchema(_Avro, SerializationSchema):
    """Rows, dicts or plain values as single Avro values without a header."""

    def serialize(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            plain = Row.as_dict(value) if isinstance(value, Row) else value
            _fastavro("Avro").schemaless_writer(out, self._parsed, plain)
        except Exception as error:
            raise RecordError(f"A record does not fit its Avro schema: {error}.") from error
        return out.getvalue()


_AVRO_BASIC = {
    "string": Types.STRING(),
    "int": Types.INT(),
    "long": Types.LONG(),
    "float": Types.FLOAT(),
    "double": Types.DOUBLE(),
    "boolean": Types.BOOLEAN(),
    "bytes": type_of(bytes),
}


def _avro_type(schema: Any) -> TypeInformation:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        return _avro_type(kinds[0]) if len(kinds) == 1 else Types.ANY()
    if isinstance(schema, dict):
        if schema.get("logicalType"):
            return Types.ANY()
        if schema["type"] == "record":
            names = [field["name"] for field in schema["fields"]]
            return Types.ROW_NAMED(names, [_avro_type(_nested(field["type"])) for field in schema["fields"]])
        return _avro_type(schema["type"]) if isinstance(schema["type"], str) else Types.ANY()
    return _AVRO_BASIC.get(schema, Types.ANY()) if isinstance(schema, str) else Types.ANY()


def _nested(schema: Any) -> Any:
    """A record within a record stays a dict."""
    return "null" if isinstance(schema, dict) and schema.get("type") == "record" else schema


def _fastavro(who: str) -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise MissingDependencyError(f'{who} needs fastavro: pip install "headrace[avro]"') from error
    return fastavro
