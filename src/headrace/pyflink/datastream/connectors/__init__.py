"""Connectors, under the names of `pyflink.datastream.connectors`."""

from headrace.pyflink.datastream.connectors.base import DeliveryGuarantee, Sink, Source

__all__ = [
    "DeliveryGuarantee",
    "Sink",
    "Source",
]
