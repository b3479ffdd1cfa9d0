"""Idle inputs and the end of time: what a restore must not get wrong while splits are still on their way."""

from __future__ import annotations

from typing import Any

from headrace import StreamExecutionEnvironment
from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.runtime.control.messages import AssignSplits
from headrace.runtime.job.enumerators import Enumerators
from headrace.runtime.task.cells import Address
from headrace.runtime.task.chain import ChainInput


class Head:
    """The head of a chain: notes the watermarks it is given, and its end."""

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.ends = 0

    def watermark(self, time_ms: int) -> None:
        self.marks.append(time_ms)

    def idle(self, is_idle: bool) -> None: ...

    def end_input(self) -> None:
        self.ends += 1


def two_inputs() -> tuple[Head, ChainInput, Address, Address]:
    head: Any = Head()
    return head, ChainInput(head, [(0, 0), (1, 0)]), Address(0, 0, 0), Address(1, 0, 0)


def test_time_does_not_end_while_an_idle_input_may_still_wake_up() -> None:
    head, inputs, short, long = two_inputs()
    inputs.idle(long, True)
    inputs.watermark(short, MAX_WATERMARK)
    inputs.end(short)
    assert head.marks == []
    inputs.idle(long, False)
    inputs.watermark(long, 70)
    assert head.marks == [70]
    inputs.watermark(long, MAX_WATERMARK)
    inputs.end(long)
    assert head.marks == [70, MAX_WATERMARK]
    assert head.ends == 1


def test_time_ends_when_every_input_says_so_even_before_they_end() -> None:
    head, inputs, left, right = two_inputs()
    inputs.watermark(left, MAX_WATERMARK)
    inputs.watermark(right, MAX_WATERMARK)
    assert head.marks == [MAX_WATERMARK]


def test_an_idle_input_does_not_hold_back_the_time_of_the_others() -> None:
    head, inputs, busy, quiet = two_inputs()
    inputs.idle(quiet, True)
    inputs.watermark(busy, 40)
    assert head.marks == [40]


def test_a_reader_is_told_that_there_is_no_split_only_if_its_enumerator_has_none_for_it() -> None:
    class Undecided(QueueEnumerator[Any]):
        """Has nothing yet and does not know whether it will."""

        def handle_split_request(self, subtask: int) -> None: ...

    class Checking(Undecided):
        """Has splits of a restored job, and looks first whether they are still what they were."""

        def holds_back(self, subtask: int) -> bool:
            return True

    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).uid("src").print()
    sent: list[Any] = []
    enumerators = Enumerators(env.build("job")[0], lambda uid, subtask, message: sent.append(message))
    context: Any = None
    enumerators._enumerators["src"] = Undecided(context, object, first=list, restored=None)
    enumerators.request("src", 1)
    assert sent == [AssignSplits("src", 1, (), last=False)]
    # Time must not pass a reader whose splits are known and will come.
    enumerators._enumerators["src"] = Checking(context, object, first=list, restored=None)
    enumerators.request("src", 1)
    assert len(sent) == 1
