"""SIGKILL for a process that writes to Kafka, at every stage of a transaction: each record arrives once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sink_lives import Life, numbers, sink_builder

from headrace.testing.kafka_broker import KafkaBroker

PROGRAM = Path(__file__).parent / "dying_writer.py"


@pytest.mark.parametrize(
    ("until", "delay"),
    [("writing", 0), ("prepared", 0), ("committing", 0), ("committing", 0.01), ("committing", 0.03), ("committed", 0)],
)
def test_the_successor_of_a_killed_process_brings_each_record_once(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], tmp_path: Path, until: str, delay: float
) -> None:
    topic = new_topic("killed")
    markers = f"{topic}-markers"
    checkpoint = tmp_path / "checkpoint"
    told = {"servers": kafka_broker.bootstrap_servers, "topic": topic, "markers": markers}
    arguments = json.dumps(told | {"checkpoint": str(checkpoint), "until": until})
    process = subprocess.Popen([sys.executable, str(PROGRAM), arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == until:
                break
        # The moment of the kill is left to chance: whatever it meets, the outcome must be the same.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay)
    finally:
        process.kill()
        process.wait(30)

    items = [checkpoint.read_bytes()] if checkpoint.exists() else []
    sink = sink_builder(kafka_broker.bootstrap_servers, topic, markers).build()
    successor = Life(sink, 2, items)
    try:
        successor.write(*numbers(250, 0)[200 if items else 0 :])
        successor.barrier(2)
        successor.complete(2)
        # Commits are decided when they return, and seen a moment later.
        deadline = time.monotonic() + 90
        while len(seen := kafka_broker.read(topic)) < 250 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [message.value().decode() for message in seen] == numbers(250)
    finally:
        successor.close()
