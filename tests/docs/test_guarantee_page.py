"""The page of guarantees names every source and sink a program can import."""

from __future__ import annotations

import inspect

import pytest
from pages import DOCS

import headrace
from headrace.connectors import kafka, postgres
from headrace.connectors.sink import Sink
from headrace.connectors.source import Source

PAGE = (DOCS / "reference" / "guarantees.md").read_text()


def connectors() -> list[type]:
    """Classes by their own name, so that an alias counts once."""
    found = {
        value
        for module in (headrace, kafka, postgres)
        for value in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(value) and issubclass(value, Source | Sink) and value not in (Source, Sink)
    }
    return sorted(found, key=lambda cls: cls.__name__)


def test_there_are_connectors_to_look_for() -> None:
    assert {"FileSink", "FileSource", "KafkaSink", "KafkaSource", "PostgresSink"} <= {c.__name__ for c in connectors()}


@pytest.mark.parametrize("connector", connectors(), ids=lambda cls: cls.__name__)
def test_what_a_connector_promises_is_on_the_page(connector: type) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{connector.__name__}" in line]
    assert rows, f"{connector.__name__} has no row in docs/reference/guarantees.md"
