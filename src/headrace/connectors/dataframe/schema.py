"""The schema of a Spark DataFrame as a row type, from the JSON form in which Spark itself writes schemas down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import JobDefinitionError
from headrace.types.information import RowType, TypeInformation, Types

_BASIC: dict[str, TypeInformation] = {
    "string": Types.STRING(),
    "boolean": Types.BOOLEAN(),
    "byte": Types.BYTE(),
    "short": Types.SHORT(),
    "integer": Types.INT(),
    "long": Types.LONG(),
    "float": Types.FLOAT(),
    "double": Types.DOUBLE(),
    "binary": Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "date": Types.SQL_DATE(),
    "timestamp": Types.INSTANT(),
    "timestamp_ntz": Types.SQL_TIMESTAMP(),
}
_SIZED: tuple[tuple[re.Pattern[str], TypeInformation], ...] = (
    (re.compile(r"(?:var)?char\(\d+\)|string .*"), Types.STRING()),
    (re.compile(r"decimal\(\d+,-?\d+\)"), Types.BIG_DEC()),
    (re.compile(r"time\(\d\)"), Types.SQL_TIME()),
)


def row_type_of_spark(schema: Mapping[str, Any]) -> RowType:
    """The type of a DataFrame's rows; `schema` is what `df.schema.jsonValue()` gives.

    Decimals have no column form here: a frame with one is read row by row, which is slower.
    """
    return _struct(schema, "")


def _struct(schema: Mapping[str, Any], path: str) -> RowType:
    fields = schema["fields"]
    if not fields:
        raise JobDefinitionError(f"{_where(path)} has no columns, so there is nothing to read. Select some.")
    names = [str(field["name"]) for field in fields]
    return RowType(tuple(names), tuple(_type(f["type"], f"{path}.{f['name']}".lstrip(".")) for f in fields))


def _type(spark: Any, path: str) -> TypeInformation:
    if isinstance(spark, str):
        if spark in _BASIC:
            return _BASIC[spark]
        for pattern, found in _SIZED:
            if pattern.fullmatch(spark):
                return found
    elif isinstance(spark, Mapping):
        match spark.get("type"):
            case "struct":
                return _struct(spark, path)
            case "array":
                return Types.LIST(_type(spark["elementType"], f"{path}[]"))
            case "map":
                return Types.MAP(_type(spark["keyType"], f"{path}.key"), _type(spark["valueType"], f"{path}.value"))
    named = spark if isinstance(spark, str) else spark.get("type")
    raise JobDefinitionError(
        f"{_where(path)} is of Spark's type {named}, for which there is no type here. Leave it out with df.drop(), or "
        "cast it to another type before from_dataframe()."
    )


def _where(path: str) -> str:
    return f'Column "{path}" of the DataFrame' if path else "The DataFrame"
