"""What stands against a start from a checkpoint is found before any task runs, and named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace import (
    BroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.checkpoint.location import OpenedCheckpoint, open_checkpoint
from headrace.checkpoint.metadata.model import state_files
from headrace.checkpoint.quick_check import quick_check
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import storage_for
from headrace.cli.main import main
from headrace.connectors.discard import DiscardSink
from headrace.errors import DamagedCheckpointError, HeadraceError, RestoreError, StateConflictError
from headrace.runtime.job.restore_check import RestoreCheck, check_restore
from headrace.testing import JobHarness, ManualSource

KEYS = 4_000
"""So much state that it lies in a file of its own."""

Build = Callable[[Any], Any]


def program(source: ManualSource[Any], build: Build, parallelism: int = 1) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    build(numbers).sink_to(DiscardSink()).uid("out")
    return env


def counting(state_type: Any) -> Build:
    return lambda numbers: (
        numbers.key_by(lambda n: n).map_with_state(lambda n, state: (n, 1), state_type=state_type).uid("counts")
    )


def saved(place: Path, build: Build) -> OpenedCheckpoint:
    """A savepoint of the program after some records, as a job leaves it."""
    source = ManualSource(int)
    with JobHarness(program(source, build)) as job:
        source.emit(*range(KEYS))
        taken = job.savepoint()
        assert taken.storage is not None
        place.mkdir()
        for file in state_files(taken.metadata):
            if file.path:
                target = place / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(taken.storage.read(file.path))
    SavepointDirectory(storage_for(str(place))).publish(taken.metadata)
    return open_checkpoint(str(place))


def check(opened: OpenedCheckpoint, build: Build, **settings: Any) -> RestoreCheck:
    plan, _ = program(ManualSource(int), build, settings.pop("parallelism", 1)).build("job")
    return check_restore(plan, opened.metadata, opened.storage, **{"allow_non_restored": False, **settings})


def state_file(place: Path) -> Path:
    files = [path for path in place.rglob("*") if path.is_file() and path.name != "_metadata"]
    return max(files, key=lambda path: path.stat().st_size)


def test_nothing_stands_against_the_same_program_and_whole_files(tmp_path: Path) -> None:
    opened = saved(tmp_path / "saved", counting(int))
    found = check(opened, counting(int))
    assert found.problems == ()
    assert found.files.hashed == found.files.bytes > 20_000
    found.require()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(Path.unlink, "is missing"), (cut, "were recorded"), (flip, "another hash")],
    ids=["gone", "cut", "flipped"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    opened = saved(tmp_path / "saved", counting(int))
    file = state_file(tmp_path / "saved")
    damage(file)
    with pytest.raises(DamagedCheckpointError, match=rf"{re.escape(file.name)}.*{words}.*--from"):
        check(opened, counting(int)).require()


def test_of_large_files_the_size_is_compared_and_the_contents_are_left_to_the_tasks(tmp_path: Path) -> None:
    opened = saved(tmp_path / "saved", counting(int))
    file = state_file(tmp_path / "saved")
    flip(file)
    found = quick_check(opened.metadata, opened.storage, hashed=1_000)
    assert found.damaged == ()
    assert found.hashed <= 1_000
    cut(file)
    (damaged,) = quick_check(opened.metadata, opened.storage, hashed=1_000).damaged
    assert file.name in damaged.path


def summed(value_type: Any) -> Build:
    return lambda numbers: (
        numbers.map(lambda n: n, output_type=value_type).uid("typed").key_by(lambda n: 0).reduce(max).uid("max")
    )


def windowed(value_type: Any) -> Build:
    return lambda numbers: (
        numbers.map(lambda n: n, output_type=value_type)
        .uid("typed")
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, t: 1)
        )
        .uid("times")
        .key_by(lambda n: 0)
        .window(TumblingEventTimeWindows.of(1_000))
        .reduce(max)
        .uid("max")
    )


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        for state in self.states:
            ctx.get_broadcast_state(state).put(1, 1)

    def __init__(self, *states: MapStateDescriptor) -> None:
        self.states = states


def ruled(value_type: Any) -> Build:
    rules = MapStateDescriptor("rules", Types.LONG(), value_type)
    return lambda numbers: numbers.connect(numbers.broadcast(rules)).process(Rules(rules)).uid("ruled")


@pytest.mark.parametrize(
    ("build", "before", "after"),
    [
        (counting, int, str),
        (summed, Types.LONG(), Types.DOUBLE()),
        (windowed, Types.LONG(), Types.DOUBLE()),
        (ruled, Types.LONG(), Types.STRING()),
        (lambda kind: remembering(kind), Types.LONG(), Types.STRING()),
    ],
    ids=["map_with_state", "reduce", "window", "broadcast", "open()"],
)
def test_a_changed_type_of_a_state_is_named(
    tmp_path: Path, build: Callable[[Any], Build], before: Any, after: Any
) -> None:
    opened = saved(tmp_path / "saved", build(before))
    assert check(opened, build(before)).problems == ()
    with pytest.raises(StateConflictError, match=r"was saved as .* but is now"):
        check(opened, build(after)).require()


class Remembering(KeyedProcessFunction):
    def __init__(self, value_type: Any) -> None:
        self.value_type = value_type

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", self.value_type))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update(value)
        yield value


def remembering(value_type: Any) -> Build:
    return lambda numbers: numbers.key_by(lambda n: n).process(Remembering(value_type)).uid("remembering")


def test_a_type_that_may_change_may_change(tmp_path: Path) -> None:
    opened = saved(tmp_path / "saved", summed(Types.INT()))
    assert check(opened, summed(Types.LONG())).problems == ()


def test_all_problems_are_found_at_once_and_the_first_counts_the_others(tmp_path: Path) -> None:
    opened = saved(tmp_path / "saved", counting(int))
    state_file(tmp_path / "saved").unlink()

    def build(numbers: Any) -> Any:
        return counting(str)(numbers.map(lambda n: n).uid("numbers-again")).set_max_parallelism(7)

    found = check(opened, build)
    assert [type(problem) for problem in found.problems] == [RestoreError, StateConflictError, DamagedCheckpointError]
    with pytest.raises(RestoreError, match=r"max parallelism.*2 more"):
        found.require()


PROGRAM = """
from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.testing import ManualSource

env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.from_source(ManualSource(int), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
counts = numbers.key_by(lambda n: n).map_with_state(lambda n, state: (n, 1), state_type=STATE).uid("counts")
counts.print().uid("out")
env.execute("job")
"""


def explain(tmp_path: Path, state_type: str, *options: str) -> Result:
    job = tmp_path / "job.py"
    job.write_text(PROGRAM.replace("STATE", state_type))
    return CliRunner().invoke(main, ["explain", str(job), "--from", str(tmp_path / "saved"), *options])


def test_explain_reports_what_would_refuse_the_start(tmp_path: Path) -> None:
    saved(tmp_path / "saved", counting(int))
    fine = explain(tmp_path, "int")
    assert fine.exit_code == 0, fine.stderr
    assert "nothing stands against it" in fine.stdout

    file = state_file(tmp_path / "saved")
    file.unlink()
    result = explain(tmp_path, "str")
    assert result.exit_code == 3
    assert re.search(r"refused: .*was saved as .* but is now", result.stdout)
    assert re.search(rf"refused: .*{re.escape(file.name)} is missing", result.stdout)

    facts = json.loads(explain(tmp_path, "str", "--json").stdout)["restore"]
    assert [problem["error"] for problem in facts["problems"]] == ["StateConflictError", "DamagedCheckpointError"]
    assert facts["damaged_files"][0]["damage"] == "missing"


def test_explain_from_what_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    result = explain(tmp_path, "int")
    assert result.exit_code == 3
    assert "There is no checkpoint at" in result.stderr


def test_every_problem_is_permanent(tmp_path: Path) -> None:
    opened = saved(tmp_path / "saved", counting(int))
    state_file(tmp_path / "saved").unlink()
    problems: tuple[HeadraceError, ...] = check(opened, counting(str)).problems
    assert len(problems) == 2
    assert not any(problem.retryable for problem in problems)
