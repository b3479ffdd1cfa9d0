"""Settings by key, under the name of `pyflink.common.configuration`."""

from headrace.options import Configuration

__all__ = [
    "Configuration",
]
