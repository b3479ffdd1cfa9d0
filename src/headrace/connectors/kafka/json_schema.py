"""The type of records that a JSON schema describes, as PyFlink's builder of JSON schemas takes it."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation, Types

_PLAIN = {
    "string": Types.STRING,
    "integer": Types.LONG,
    "number": Types.DOUBLE,
    "boolean": Types.BOOLEAN,
}


def type_of_json_schema(text: str) -> TypeInformation:
    """Rows for objects with properties, lists for arrays of one kind of items; `["string", "null"]` is a string."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"json_schema() got no JSON: {error}.") from None
    return _type(schema, "$")


def _type(schema: Any, place: str) -> TypeInformation:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind == "object" and schema.get("properties"):
        fields = schema["properties"]
        return Types.ROW_NAMED(list(fields), [_type(field, f"{place}.{name}") for name, field in fields.items()])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return Types.LIST(_type(schema["items"], f"{place}[]"))
    raise ConfigurationError(
        f"json_schema(): {place} is {schema!r}; wanted a type of object with properties, array with items, "
        f"{', '.join(_PLAIN)}. Say the type with type_info() instead."
    )
