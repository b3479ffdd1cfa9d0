"""The gate against a model that is too simple to be wrong: one list per channel, and the protocol in plain words."""

from __future__ import annotations

from collections import Counter

from gate_examples import FIXED_EDGE, ManualClock, cell, name_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.runtime.task.cells import Barrier
from headrace.runtime.task.gate import CONTROL, Deliver, GateMode, GiveUp, InputGate, LogComplete, TakeSnapshot


class GateMachine(RuleBasedStateMachine):
    """Sends numbered cells and barriers on every channel, in order, as producers do; takes events in between.

    Each producer forwards barrier n once, after barrier n - 1 unless that was aborted. The model knows for each
    channel which cells came before which barrier. At every snapshot that completes, state plus log of each channel
    must be exactly the cells before its barrier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()

    @initialize(
        channels=st.sampled_from([1, 2, 3, 4, 7]),
        control=st.booleans(),
        timeout=st.sampled_from([None, 0.0, 3.0]),
        limit=st.sampled_from([60, 300, 1 << 20]),
        fixed=st.booleans(),
    )
    def begin(self, channels: int, control: bool, timeout: float | None, limit: int, fixed: bool) -> None:
        self.channels = [*range(channels), *([CONTROL] if control else [])]
        self.unaligned = timeout == 0.0
        self.gate = InputGate(
            self.channels,
            mode=GateMode.EXACTLY_ONCE,
            clock=self.clock,
            aligned_timeout_s=timeout,
            aside_limit=limit,
            fixed_edges=(FIXED_EDGE,) if fixed else (),
        )
        self.fixed = fixed
        self.in_hand: str | None = None
        """The cell that a mailbox would still be busy with."""
        self.sent: dict[int, list[str]] = {c: [] for c in self.channels}
        self.before: dict[int, dict[int, int]] = {}
        """By checkpoint and channel: how many cells were sent before its barrier."""
        self.done: dict[int, list[str]] = {c: [] for c in self.channels}
        self.snapshots: dict[int, dict[int, list[str]]] = {}
        self.over: set[int] = set()
        self.taken: set[int] = set()
        self.savepoints: set[int] = set()
        self.next_id = 1

    # -- producers

    @rule(data=st.data(), on_fixed_edge=st.booleans())
    def send_a_cell(self, data: st.DataObject, on_fixed_edge: bool) -> None:
        channel = data.draw(st.sampled_from(self.channels))
        name = f"{'F' if on_fixed_edge else 'f'}{channel}/{len(self.sent[channel])}"
        self.sent[channel].append(name)
        if channel == CONTROL:
            self.gate.arrive_control(name)
        else:
            self.gate.arrive(channel, cell(name))

    @rule(data=st.data(), savepoint=st.sampled_from([False, False, False, True]))
    def send_a_barrier(self, data: st.DataObject, savepoint: bool) -> None:
        channel = data.draw(st.sampled_from(self.channels))
        highest = max((c for c, at in self.before.items() if channel in at), default=0)
        ahead = [c for c in self.before if c > highest and c not in self.over]
        if not ahead:
            if len(self.before.keys() - self.over) >= 2:
                return
            self.before[self.next_id] = {}
            if savepoint:
                self.savepoints.add(self.next_id)
            ahead = [self.next_id]
            self.next_id += 1
        checkpoint_id = min(ahead)
        self.before[checkpoint_id][channel] = len(self.sent[channel])
        savepoint = checkpoint_id in self.savepoints
        barrier = Barrier(checkpoint_id, unaligned=self.unaligned and not savepoint, canonical=savepoint)
        if channel == CONTROL:
            self.gate.arrive_control(barrier)
        else:
            self.gate.arrive(channel, barrier.encode())

    @precondition(lambda self: self.before)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 5)):
            return
        checkpoint_id = data.draw(st.sampled_from(sorted(self.before)))
        self.gate.abort(checkpoint_id)
        self.over.add(checkpoint_id)
        self.snapshots.pop(checkpoint_id, None)

    @rule()
    def wait(self) -> None:
        self.clock.now += 1.0

    # -- the mailbox

    @rule(times=st.integers(1, 6))
    def take(self, times: int) -> None:
        for _ in range(times):
            self.in_hand = None
            self.handle(self.gate.take())

    @rule()
    def take_urgent(self) -> None:
        self.handle(self.gate.take_urgent())

    def handle(self, event: object) -> None:
        match event:
            case Deliver(channel, item):
                name = name_of(item) if isinstance(item, bytes) else item
                assert name == self.sent[channel][len(self.done[channel])], "a channel keeps its order"
                self.done[channel].append(name)
                self.in_hand = name if isinstance(item, bytes) else None
            case TakeSnapshot(barrier, _, logged, complete):
                checkpoint_id = barrier.checkpoint_id
                assert checkpoint_id not in self.over, "it was given up"
                assert checkpoint_id not in self.taken, "once"
                assert checkpoint_id > max(self.taken, default=0), "in the order of ids"
                self.taken.add(checkpoint_id)
                if CONTROL in self.channels:
                    assert CONTROL in self.before[checkpoint_id], "never before the trigger"
                if logged is not None and self.fixed and self.in_hand is not None:
                    assert not self.in_hand.isupper(), "the rest of that cell would be in flight"
                if checkpoint_id in self.savepoints:
                    assert logged is None, "savepoints are aligned"
                self.snapshots[checkpoint_id] = {c: list(names) for c, names in self.done.items()}
                self.log(checkpoint_id, logged or [])
                if complete:
                    self.check(checkpoint_id)
            case LogComplete(checkpoint_id, logged):
                if checkpoint_id in self.snapshots:
                    self.log(checkpoint_id, logged)
                    self.check(checkpoint_id)
            case GiveUp(checkpoint_id, _):
                self.over.add(checkpoint_id)
                self.snapshots.pop(checkpoint_id, None)

    def log(self, checkpoint_id: int, logged: list[tuple[int, bytes]]) -> None:
        for channel, data in logged:
            assert not (self.fixed and name_of(data).isupper()), "a record on a fixed route is never in flight"
            self.snapshots[checkpoint_id][channel].append(name_of(data))

    def check(self, checkpoint_id: int) -> None:
        """State and log of every channel together are what was sent before its barrier, in order."""
        saved = self.snapshots.pop(checkpoint_id)
        for channel in self.channels:
            assert saved[channel] == self.sent[channel][: self.before[checkpoint_id][channel]]
        self.over.add(checkpoint_id)

    # -- always

    @invariant()
    def nothing_is_invented(self) -> None:
        for channel in getattr(self, "channels", ()):
            assert not Counter(self.done[channel]) - Counter(self.sent[channel])

    def teardown(self) -> None:
        """When every checkpoint is over, everything that was sent is delivered."""
        if not hasattr(self, "gate"):
            return
        for checkpoint_id in self.before:
            self.gate.abort(checkpoint_id)
            self.over.add(checkpoint_id)
        self.snapshots.clear()
        while (event := self.gate.take()) is not None:
            self.handle(event)
        assert self.done == self.sent
        assert not self.gate.has_input
        assert self.gate.inbox_bytes == 0
        self.gate.close()


TestGateAgainstModel = GateMachine.TestCase
TestGateAgainstModel.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
