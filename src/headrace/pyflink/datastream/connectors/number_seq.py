"""A source of numbers, under the name of `pyflink.datastream.connectors.number_seq`."""

from headrace.connectors.sequence import NumberSequenceSource

__all__ = [
    "NumberSequenceSource",
]
