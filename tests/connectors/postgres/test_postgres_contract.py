"""The three ways of writing to PostgreSQL keep the contract of sinks, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.services.postgres import Database

from headrace.connectors.postgres import PostgresSink, PostgresTwoPhaseSink
from headrace.connectors.sink import SinkGuarantee, SinkWriter
from headrace.testing.sink_contract import NewSink, SinkContract, SinkUnderTest

SAME = "SELECT n FROM {} ORDER BY place"


def in_tables(database: Database, make: Callable[[str], SinkUnderTest], columns: str) -> NewSink:
    """Sinks of one kind, each with a table of its own."""
    numbers = itertools.count()

    def new_sink() -> SinkUnderTest:
        table = f"numbers_{next(numbers)}"
        database.run(f"CREATE TABLE {table} ({columns}, place bigserial)")
        subject = make(table)
        subject.sink.preflight()
        return subject

    return new_sink


class TestLedger(SinkContract):
    """`PostgresSink`: append, by a ledger row."""

    @pytest.fixture
    def new_sink(self, database: Database) -> NewSink:
        def make(table: str) -> SinkUnderTest:
            sink = PostgresSink(database.url, table, ["n"])
            assert sink.guarantee is SinkGuarantee.WRITE_AHEAD
            return SinkUnderTest(sink, visible=lambda: database.column(SAME.format(table)))

        return in_tables(database, make, "n bigint")


class TestLedgerWithKeys(SinkContract):
    """`PostgresSink(keys=…)`: replace, by a ledger row."""

    @pytest.fixture
    def new_sink(self, database: Database) -> NewSink:
        def make(table: str) -> SinkUnderTest:
            sink = PostgresSink(database.url, table, ["n", "half"], keys=["n"])
            return SinkUnderTest(
                sink,
                visible=lambda: database.column(SAME.format(table)),
                to_record=lambda n: {"half": n / 2, "n": n},
                replaces=True,
            )

        return in_tables(database, make, "n bigint PRIMARY KEY, half float8")


class TestUpsert(SinkContract):
    """`PostgresSink.upsert`: idempotent."""

    @pytest.fixture
    def new_sink(self, database: Database) -> NewSink:
        def make(table: str) -> SinkUnderTest:
            sink = PostgresSink.upsert(database.url, table, ["n"], keys=["n"])
            assert sink.guarantee is SinkGuarantee.IDEMPOTENT
            return SinkUnderTest(sink, visible=lambda: database.column(SAME.format(table)), kill=disconnect)

        return in_tables(database, make, "n bigint PRIMARY KEY")


class TestTwoPhase(SinkContract):
    """`PostgresSink.two_phase`: PREPARE TRANSACTION."""

    @pytest.fixture
    def new_sink(self, database: Database) -> NewSink:
        def make(table: str) -> SinkUnderTest:
            sink = PostgresSink.two_phase(database.url, table, ["n"])
            assert isinstance(sink, PostgresTwoPhaseSink)
            assert sink.guarantee is SinkGuarantee.TWO_PHASE
            return SinkUnderTest(
                sink,
                visible=lambda: database.column(SAME.format(table)),
                leftovers=lambda: database.prepared,
                kill=disconnect,
                lose=lambda: [database.run(f"ROLLBACK PREPARED '{gid}'") for gid in database.prepared] and None,
            )

        return in_tables(database, make, "n bigint")


def disconnect(writer: SinkWriter) -> None:
    """What the death of the writer's process does: its connection is gone, without a word."""
    sink: Any = writer._sink  # type: ignore[attr-defined]
    sink.close()
