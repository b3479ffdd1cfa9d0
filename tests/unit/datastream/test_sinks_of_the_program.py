"""What `sink_to` refuses before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headrace import StreamExecutionEnvironment, TwoPhaseCommitSink, WriteAheadSink
from headrace.connectors.discard import DiscardSink
from headrace.errors import JobDefinitionError


class Transaction(msgspec.Struct):
    name: str


class TransactionSink(TwoPhaseCommitSink[Transaction]):
    transaction_type = Transaction

    def begin(self) -> Transaction:
        return Transaction("")

    def invoke(self, txn: Transaction, value: Any, timestamp: int | None) -> None: ...

    def pre_commit(self, txn: Transaction) -> None: ...

    def commit(self, txn: Transaction) -> None: ...

    def abort(self, txn: Transaction) -> None: ...


class LogSink(WriteAheadSink):
    record_type = Transaction

    def send(self, values: Sequence[Any], marker: Any) -> None: ...

    def is_committed(self, marker: Any) -> bool:
        return False


def stream() -> Any:
    return StreamExecutionEnvironment.get_execution_environment().from_collection([1])


@pytest.mark.parametrize(("sink", "what"), [(TransactionSink(), "transaction_type"), (LogSink(), "record_type")])
def test_a_struct_of_the_program_itself_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, sink: Any, what: str
) -> None:
    stream().sink_to(sink)
    monkeypatch.setattr(Transaction, "__module__", "__main__")
    with pytest.raises(JobDefinitionError, match=rf"The {what} Transaction of {type(sink).__name__} .* a dataclass"):
        stream().sink_to(sink)


def test_what_is_no_sink_is_refused_and_a_class_is_told_to_be_called() -> None:
    with pytest.raises(JobDefinitionError, match=r"Write DiscardSink\(\.\.\.\)"):
        stream().sink_to(DiscardSink)
    with pytest.raises(JobDefinitionError, match="wanted a Sink object"):
        stream().sink_to(print)
