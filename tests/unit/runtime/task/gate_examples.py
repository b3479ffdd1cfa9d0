"""A gate with hand-made cells, a clock that is moved by hand, and a short way to write down what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.runtime.task.cells import Address, Barrier, records_header
from headrace.runtime.task.gate import Deliver, GateEvent, GateMode, GiveUp, InputGate, LogComplete, TakeSnapshot


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


FIXED_EDGE = 1


def cell(name: str) -> bytes:
    """A cell of records whose payload is its name; one in capitals comes on an edge with a fixed route."""
    return records_header(Address(FIXED_EDGE if name.isupper() else 0, 0, 0), 0, 0, 1) + name.encode()


def name_of(data: bytes) -> str:
    return data[len(cell("")) :].decode()


class Bench:
    """Feeds a gate and tells what came out, as short text: `a1`, `snapshot 1`, `log 1: b1`, `give up 1`."""

    def __init__(
        self,
        *channels: int,
        mode: GateMode = GateMode.EXACTLY_ONCE,
        timeout: float | None = None,
        limit: int = 1 << 20,
        spill_dir: Path | None = None,
        memory: int = 1 << 20,
        fixed: bool = False,
    ) -> None:
        self.clock = ManualClock()
        self.urgent = 0
        self.gate = InputGate(
            channels,
            mode=mode,
            clock=self.clock,
            aligned_timeout_s=timeout,
            fixed_edges=(FIXED_EDGE,) if fixed else (),
            aside_limit=limit,
            spill_dir=spill_dir,
            memory_limit=memory,
            on_urgent=self._note_urgent,
        )

    def _note_urgent(self) -> None:
        self.urgent += 1

    def arrive(self, channel: int, *items: str | Barrier | int) -> Bench:
        """Names become cells, numbers become plain barriers."""
        for item in items:
            self.gate.arrive(channel, cell(item) if isinstance(item, str) else as_barrier(item).encode())
        return self

    def control(self, *items: Any) -> Bench:
        for item in items:
            self.gate.arrive_control(as_barrier(item) if isinstance(item, int) else item)
        return self

    def one(self) -> str | None:
        return told(self.gate.take())

    def all(self) -> list[str]:
        told_so_far = []
        while (event := self.gate.take()) is not None:
            told_so_far.append(told(event))
        return [text for text in told_so_far if text is not None]


def as_barrier(item: Barrier | int) -> Barrier:
    return Barrier(item) if isinstance(item, int) else item


def told(event: GateEvent | None) -> str | None:
    match event:
        case None:
            return None
        case Deliver(_, data):
            return name_of(data) if isinstance(data, bytes) else str(data)
        case TakeSnapshot(barrier, _, None, _):
            return f"snapshot {barrier.checkpoint_id}"
        case TakeSnapshot(barrier, _, logged, complete):
            assert logged is not None
            names = " ".join(name_of(d) for _, d in logged)
            return f"snapshot {barrier.checkpoint_id}: {names}{'' if complete else ' ...'}"
        case LogComplete(checkpoint_id, logged):
            return f"log {checkpoint_id}: {' '.join(name_of(d) for _, d in logged)}"
        case GiveUp(checkpoint_id, _):
            return f"give up {checkpoint_id}"
