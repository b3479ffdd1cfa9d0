"""Executors of a cluster come one after the other: their slots are waited for before a job is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.spark import preflight


class Cluster:
    """Has one slot more each time it is asked, up to `largest`."""

    is_local = False

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.asked = 0

    def total_slots(self) -> int:
        self.asked += 1
        return min(self.asked - 1, self.largest)

    def free_slots(self) -> int:
        return min(self.asked, self.largest)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_LOOK_EVERY_S", 0.0)


def test_slots_that_come_late_are_enough() -> None:
    late: Any = Cluster(largest=4)
    assert preflight._slots(late, 4, 0).ok


def test_slots_that_never_come_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "EXECUTORS_WITHIN_S", 0.05)
    small: Any = Cluster(largest=3)
    finding = preflight._slots(small, 4, 0)
    assert not finding.ok
    assert finding.found == "3 of 3 free"


def test_a_local_master_is_not_waited_for() -> None:
    local: Any = Cluster(largest=4)
    local.is_local = True
    assert not preflight._slots(local, 4, 0).ok
    assert local.asked == 1
