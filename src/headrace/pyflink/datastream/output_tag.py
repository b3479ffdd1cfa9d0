"""Side outputs, under the name of `pyflink.datastream.output_tag`."""

from headrace.operators.functions import OutputTag

__all__ = [
    "OutputTag",
]
