"""A task of a job harness: the engine's own, without the threads, the control connection and Spark around it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.operators.base import Operator
from headrace.plan.graph import JobPlan
from headrace.runtime.control import messages as msg
from headrace.runtime.task.chain import ChainSubtask
from headrace.runtime.task.deployment import LevelDeployment
from headrace.runtime.task.edges import Clock
from headrace.runtime.task.gate import InputGate
from headrace.runtime.task.mailbox import Mailbox
from headrace.runtime.task.main import Task
from headrace.runtime.task.output import OutputQueue
from headrace.testing.clock import ManualClock
from headrace.testing.subject import own_copy


class SteppedClock(Clock):
    """Timers follow the test's clock; the engine's own pauses follow the real one."""

    __slots__ = ("_manual",)

    def __init__(self, manual: ManualClock) -> None:
        super().__init__()
        self._manual = manual

    def wall_ms(self) -> int:
        return self._manual()


class SteppedMailbox(Mailbox):
    """Notes that it would wait instead of waiting."""

    resting = False

    def _sleep(self, seconds: float) -> None:
        self.resting = True


class CellQueue(OutputQueue):
    """Output that the harness carries to the next level, without a limit."""

    def __init__(self, slot: int, next_slots: int, attention: Any) -> None:
        super().__init__(slot, next_slots, attention)
        self.cells: deque[tuple[int, bytes]] = deque()

    def put(self, slot: int, data: bytes) -> None:
        self.cells.append((slot, data))


class HarnessTask(Task):
    """Stepped by `step`; what it tells the driver goes to `tell`, on any thread."""

    mailbox_type = SteppedMailbox

    def __init__(
        self,
        deployment: LevelDeployment,
        slot: int,
        clock: ManualClock,
        tell: Callable[[tuple[int, int], Any], None],
        woken: threading.Event,
    ) -> None:
        super().__init__(replace(deployment, plan=_own_functions(deployment.plan, deployment.level)), slot, iter(()))
        self.key = (deployment.level, slot)
        self.cells = CellQueue(slot, self._next_slots, self._attention)
        self._output = self.cells
        self._clock = SteppedClock(clock)
        self._tell = tell
        self._woken = woken
        self.subtasks: list[ChainSubtask] = []
        self.drained = False

    def open(self, deploy: msg.Deploy) -> None:
        """Make operators, restore and open them."""
        self.mailbox = self._assemble(self.subtasks, deploy)
        self._mailbox = self.mailbox

    @property
    def gate(self) -> InputGate:
        assert self._gate is not None
        return self._gate

    @property
    def operators(self) -> list[Operator]:
        return [operator for subtask in self.subtasks for operator in subtask.operators.values()]

    def step(self) -> bool:
        """One turn of the mailbox; False if there was nothing to do."""
        mailbox = self.mailbox
        assert isinstance(mailbox, SteppedMailbox)
        mailbox.resting = False
        mailbox.turn()
        return not mailbox.resting

    def discard(self) -> None:
        """End of the attempt."""
        self._stopping.set()
        self._close(self.subtasks)
        self._local.close()

    def _send(self, message: msg.Message) -> None:
        if not self._stopping.is_set():
            self._tell(self.key, message)

    def _deliver(self, results: msg.Collected) -> None:
        self._send(results)

    def _wake(self) -> None:
        super()._wake()
        self._woken.set()

    def _in_background(self, work: Callable[[], Any]) -> None:
        work()


def _own_functions(plan: JobPlan, level: int) -> JobPlan:
    """The plan with functions that this task shares with no other, as if it had travelled to a worker."""
    own = {node for chain in plan.chains if chain.level == level for node in chain.nodes}
    nodes = tuple(
        replace(node, factory=own_copy(node.factory)) if node.id in own else node for node in plan.graph.nodes
    )
    return replace(plan, graph=replace(plan.graph, nodes=nodes))
