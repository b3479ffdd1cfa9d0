"""Formats, under the names of `pyflink.datastream.formats`."""
