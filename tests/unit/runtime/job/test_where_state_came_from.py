"""The line about a start says where restored state came from."""

from __future__ import annotations

import pytest

from headrace.checkpoint.handles import RestoredBytes
from headrace.plan.settings import JobSettings
from headrace.runtime.job.status import JobEvent, StatusReport
from headrace.runtime.job.status_text import event_text


@pytest.mark.parametrize(
    ("restored", "words"),
    [
        (RestoredBytes(), "restored from checkpoint 7; "),
        (RestoredBytes(5_400_000), "restored from checkpoint 7 (5.1 MiB locally, 0 B from storage); "),
        (RestoredBytes(0, 999), "restored from checkpoint 7 (0 B locally, 999 B from storage); "),
        (
            RestoredBytes(2_048, 999, 3),
            "checkpoint 7 (2.0 KiB locally, 999 B from storage; local copies that could not be used: 3); ",
        ),
    ],
)
def test_a_start_says_how_much_was_restored_from_where(restored: RestoredBytes, words: str) -> None:
    event = JobEvent("running", 0, {"attempt": 2, "restored": 7, "bytes": restored.as_json()})
    text = event_text(event, StatusReport("alerts", "alerts", pid=1), JobSettings("alerts", "alerts"))
    assert text is not None
    assert words in text


def test_parts_add_up() -> None:
    assert RestoredBytes(1, 2, 3) + RestoredBytes(10, 20, 30) == RestoredBytes(11, 22, 33)
