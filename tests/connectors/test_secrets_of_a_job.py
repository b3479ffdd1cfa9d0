"""Passwords of a real job that fails twice: they are in nothing that it writes, shows or leaves behind."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from programs import Program
from tests.recovery.conftest import programs
from tests.services.kafka import kafka_broker, new_topic
from tests.services.postgres import Database, database, postgres_server

from headrace.testing.kafka_broker import KafkaBroker

__all__ = ["database", "kafka_broker", "new_topic", "postgres_server", "programs"]

PROGRAM = Path(__file__).parent / "secret_job.py"
REFUSED = "entry-7-1"
"""A row that the table does not take: the commit fails."""


def forms_of(word: str) -> list[bytes]:
    """How a word may stand in a file: plain, in a URL, as UTF-16 and in hexadecimal digits, or within base64."""
    data = word.encode()
    found = [data, quote(word, safe="").encode(), word.encode("utf-16-le"), data.hex().encode()]
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data + bytes(3 - (before + len(data)) % 3))
        # Only what follows from the word alone, wherever it stands among other bytes.
        first = -(-before * 8 // 6)
        found.append(encoded[first : (before + len(data)) * 8 // 6])
    return found


def places_with(word: str, places: dict[str, list[tuple[str, bytes]]]) -> set[str]:
    """The places, and files in them, that have the word in any form."""
    forms = forms_of(word)
    return {
        f"{place}: {name}"
        for place, files in places.items()
        for name, data in files
        if any(form in data or form in name.encode() for form in forms)
    }


def files_below(path: Path) -> list[tuple[str, bytes]]:
    """Every file with its name, hidden ones too."""
    everything: Iterator[Path] = path.rglob("*") if path.is_dir() else iter([path])
    return [(str(file.relative_to(path.parent)), file.read_bytes()) for file in everything if file.is_file()]


@pytest.mark.parametrize("around", ["", "x", "xy", "xyz"])
def test_a_word_is_found_in_every_form(tmp_path: Path, around: str) -> None:
    word = "s3cret/p4ss wörd"
    data = f"{around}{word}{around}"
    planted = [data.encode(), quote(data, safe="").encode(), data.encode("utf-16-le"), data.encode().hex().encode()]
    planted += [base64.b64encode(data.encode()), base64.b64encode(b"\0" + data.encode() + b"\0")]
    for n, bytes_of in enumerate(planted):
        (tmp_path / "deep" / str(n)).mkdir(parents=True)
        (tmp_path / "deep" / str(n) / ".file").write_bytes(b"before " + bytes_of + b" after")
    (tmp_path / word.replace("/", "")).touch()
    (tmp_path / "other").write_bytes(b"s3cret/p4ss w")
    found = places_with(word, {"here": files_below(tmp_path)})
    assert len(found) == len(planted)
    assert places_with(word.replace("/", ""), {"here": files_below(tmp_path)}), "a name counts too"


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_no_secret_of_a_failing_job_is_in_its_checkpoints_logs_status_event_log_topics_or_tables(
    kafka_broker: KafkaBroker,
    new_topic: Callable[..., str],
    database: Database,
    tmp_path: Path,
    programs: list[Program],
) -> None:
    secrets = {name: f"{name}-{uuid.uuid4().hex}" for name in ("source", "sink", "table")}
    url = f"postgresql://postgres:{secrets['table']}@127.0.0.1:{database.server.port}/{database.name}"
    # Of the job and of an operator, and shown on purpose: where this is not found, no secret would be either.
    shown = f"name-{uuid.uuid4().hex}"
    database.run(f"CREATE TABLE lines (line text CHECK (line <> '{REFUSED}'))")
    source, sink, markers = new_topic("entries"), new_topic("lines"), new_topic("markers", cleanup_policy="compact")
    kafka_broker.produce(source, [(None, f"entry-{n}") for n in range(20)])
    settings = {
        "directory": str(tmp_path),
        "servers": kafka_broker.bootstrap_servers,
        "source": source,
        "sink": sink,
        "markers": markers,
        "name": shown,
    }
    program = Program(
        settings,
        {
            "JOB_SECRETS": json.dumps({**secrets, "url": url}),
            "PYSPARK_PYTHON": sys.executable,
            "HEADRACE_LOG": "info",
            "HEADRACE_EVENT_LOG": str(tmp_path / "events.jsonl"),
        },
        PROGRAM,
    )
    programs.append(program)
    assert program.finish() == 1, program.tail()

    told = program.output.read_text()
    assert "the books do not balance" in told, "the failure of the function"
    assert "violates check constraint" in told, "and that of the table"
    assert "JobFailedError" in told
    places: dict[str, list[tuple[str, bytes]]] = {
        "checkpoints": files_below(tmp_path / "checkpoints"),
        "status": files_below(tmp_path / "status"),
        "Spark's event log": files_below(tmp_path / "spark-events"),
        "output": files_below(program.output),
        "events": files_below(tmp_path / "events.jsonl"),
        "topics": [(topic, records_of(kafka_broker, topic)) for topic in (sink, markers)],
        "tables": [
            (t, repr(database.run(f"SELECT * FROM {t}")).encode()) for t in ("lines", "headrace_ledger_writers")
        ],
    }
    assert any(name.endswith("/_metadata") for name, _ in places["checkpoints"])
    for name, secret in secrets.items():
        assert places_with(secret, places) == set(), f"the secret of {name}"
    seen = {place.partition(":")[0] for place in places_with(shown, places)}
    assert seen == set(places) - {"tables"}, "which have nothing, as nothing was committed"


def records_of(broker: KafkaBroker, topic: str) -> bytes:
    """All that is in a topic, of transactions that were given up too."""
    found: list[Any] = broker.read(topic, committed=False)
    return repr([(message.key(), message.value(), message.headers()) for message in found]).encode()
