"""A process that writes one checkpoint to PostgreSQL and kills itself at the moment that its caller names.

    python dying_writer.py URL KIND MOMENT FILE

What a completed checkpoint would hold, the prepared items, is left in FILE as the checkpoint is published.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.connectors.postgres import PostgresSink, client, table
from headrace.connectors.postgres.ledger import Ledger
from headrace.connectors.sink import Sink, WriterContext

RECORDS = 5


def sink_of(kind: str, url: str) -> Sink:
    if kind == "two-phase":
        return PostgresSink.two_phase(url, "numbers", ["n"])
    if kind == "upsert":
        return PostgresSink.upsert(url, "numbers", ["n"], ["n"])
    return PostgresSink(url, "numbers", ["n"])


def dies(moment: str, wanted: str) -> None:
    if moment == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def dying_after(call: Callable[..., Any], moment: str, wanted: str) -> Callable[..., Any]:
    def called(*args: Any, **named: Any) -> Any:
        result = call(*args, **named)
        dies(moment, wanted)
        return result

    return called


def main(url: str, kind: str, wanted: str, file: str) -> None:
    sink = sink_of(kind, url)
    connect = client.Server.connect

    def connected(server: Any, who: str, *, autocommit: bool = False) -> Any:
        connection = connect(server, who, autocommit=autocommit)
        connection.commit = dying_after(connection.commit, "committed", wanted)
        execute = connection.execute

        def executed(statement: Any, *parameters: Any) -> Any:
            text = statement if isinstance(statement, str) else statement.as_string(connection)
            if text.startswith("PREPARE"):
                dies("before PREPARE", wanted)
            result = execute(statement, *parameters)
            if text.startswith("PREPARE"):
                dies("after PREPARE", wanted)
            if text.startswith("COMMIT PREPARED"):
                dies("committed", wanted)
            return result

        connection.execute = executed
        return connection

    client.Server.connect = connected  # type: ignore[method-assign]
    Ledger.claim = dying_after(Ledger.claim, "claimed", wanted)  # type: ignore[method-assign]
    table.Table.write = dying_after(table.Table.write, "written", wanted)  # type: ignore[method-assign]

    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    for number in range(RECORDS):
        writer.write(number, None)
        if number == 2:
            dies("in the middle", wanted)
    writer.flush()
    items = list(writer.prepare_commit(1))
    dies("prepared", wanted)
    Path(file).write_bytes(msgspec.msgpack.encode(items))
    dies("published", wanted)
    committer = sink.create_committer()
    if committer is not None:
        committer.commit(items)
    sys.exit("nothing killed it")


if __name__ == "__main__":
    main(*sys.argv[1:])
