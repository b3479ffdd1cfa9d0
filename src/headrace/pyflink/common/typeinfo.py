"""Types, under the names of `pyflink.common.typeinfo`."""

from __future__ import annotations

from headrace.pyflink.absence import absent
from headrace.types.information import BasicType, ListType, MapType, RowType, TupleType, TypeInformation, Types

__all__ = [
    "BasicTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "RowTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
]

BasicTypeInfo = BasicType
ListTypeInfo = ListType
MapTypeInfo = MapType
RowTypeInfo = RowType
TupleTypeInfo = TupleType

_MADE_BY_TYPES = "types are values; make one with Types and compare them with ==."
_OF_JAVA = "it wraps a type of Java. Use Types."

__getattr__ = absent(
    __name__,
    {
        "BasicArrayTypeInfo": _MADE_BY_TYPES,
        "ExternalTypeInfo": _OF_JAVA,
        "InstantTypeInfo": _MADE_BY_TYPES,
        "LocalTimeTypeInfo": _MADE_BY_TYPES,
        "ObjectArrayTypeInfo": _MADE_BY_TYPES,
        "PickledBytesTypeInfo": _MADE_BY_TYPES,
        "PrimitiveArrayTypeInfo": _MADE_BY_TYPES,
        "SqlTimeTypeInfo": _MADE_BY_TYPES,
        "WrapperTypeInfo": _OF_JAVA,
    },
)
