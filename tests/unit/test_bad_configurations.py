"""Configurations that cannot work: each is refused before anything is written, by the name of the setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    CheckpointingMode,
    Configuration,
    DataStream,
    Encoder,
    FileSink,
    KeyedProcessFunction,
    NumberSequenceSource,
    RestartStrategies,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from headrace.errors import HeadraceError


class Keep(KeyedProcessFunction):
    """Keyed, so that a key is wanted."""

    def process_element(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


class Program:
    """A job that would run, until one of the cases below spoils it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = StreamExecutionEnvironment.get_execution_environment()
        self.env.set_parallelism(2)
        self.env.enable_checkpointing(1_000)
        self.env.get_checkpoint_config().set_checkpoint_storage(f"file://{folder}/checkpoints")
        self.numbers = self.env.from_source(
            NumberSequenceSource(0, 10), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )

    def run(self, spoil: Callable[[Program], Any]) -> None:
        spoil(self)
        self.numbers.sink_to(FileSink.for_row_format(f"{self.folder}/out", Encoder.simple_string_encoder()).build())
        self.env.execute("spoiled")

    def configure(self, key: str, value: str) -> None:
        configuration = Configuration()
        configuration.set_string(key, value)
        self.env.configure(configuration)

    def keyed(self) -> DataStream:
        return self.numbers.key_by(lambda number: number % 3).process(Keep())

    def twice_one_uid(self) -> None:
        self.keyed().uid("keep")
        self.keyed().uid("keep")

    def wider_than_its_key_groups(self) -> None:
        self.keyed().set_parallelism(9).set_max_parallelism(4)

    def forward_to_another_width(self) -> None:
        self.numbers.forward().map(lambda n: n).set_parallelism(3)

    def storage_is_a_file(self) -> None:
        (self.folder / "plain").write_text("")
        self.env.get_checkpoint_config().set_checkpoint_storage(f"file://{self.folder}/plain")


CASES: dict[str, tuple[Callable[[Program], Any], str]] = {
    "control port above the largest": (lambda p: p.configure("control.port", "70000"), "control.port is 70000"),
    "heartbeat timeout too short": (
        lambda p: p.configure("heartbeat.timeout", "3 s"),
        "heartbeat.timeout is 3000 ms and heartbeat.interval is 2000 ms",
    ),
    "no subtask at all": (lambda p: p.env.set_parallelism(0), r"[Pp]arallelism.*0"),
    "fewer than no subtask": (lambda p: p.env.set_parallelism(-2), r"[Pp]arallelism.*-2"),
    "no key group": (lambda p: p.env.set_max_parallelism(0), r"[Mm]ax.parallelism.*0"),
    "more key groups than there are": (lambda p: p.env.set_max_parallelism(1 << 20), r"[Mm]ax.parallelism"),
    "parallelism above its maximum": (Program.wider_than_its_key_groups, r"is 9, above its max parallelism of 4"),
    "an interval of nothing": (lambda p: p.env.enable_checkpointing(0), r"interval"),
    "an interval below nothing": (lambda p: p.env.enable_checkpointing(-5), r"interval|-5"),
    "no time for a checkpoint": (lambda p: p.env.get_checkpoint_config().set_checkpoint_timeout(0), r"timeout"),
    "a pause below nothing": (
        lambda p: p.env.get_checkpoint_config().set_min_pause_between_checkpoints(-1),
        r"pause|-1",
    ),
    "no checkpoint at a time": (
        lambda p: p.env.get_checkpoint_config().set_max_concurrent_checkpoints(0),
        r"concurrent",
    ),
    "retained 0": (lambda p: p.env.get_checkpoint_config().set_num_retained_checkpoints(0), r"retain"),
    "tolerates fewer than no failure": (
        lambda p: p.env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(-1),
        r"tolerable",
    ),
    "a mode that is none": (
        lambda p: p.env.get_checkpoint_config().set_checkpointing_mode("sometimes"),  # type: ignore[arg-type]
        r"sometimes",
    ),
    "a mode of another kind in a text": (
        lambda p: p.configure("execution.checkpointing.mode", "twice"),
        r"execution\.checkpointing\.mode.*twice",
    ),
    "a duration in parsecs": (
        lambda p: p.configure("execution.checkpointing.interval", "5 parsecs"),
        r"execution\.checkpointing\.interval.*parsecs",
    ),
    "a number that is a word": (
        lambda p: p.configure("parallelism.default", "many"),
        r"parallelism\.default.*many",
    ),
    "a backend that is not there": (lambda p: p.configure("state.backend.type", "paper"), r"state\.backend.*paper"),
    "a backend of another kind": (lambda p: p.env.set_state_backend("rocksdb"), r"rocksdb"),  # type: ignore[arg-type]
    "storage by an unknown scheme": (
        lambda p: p.env.get_checkpoint_config().set_checkpoint_storage("pigeon://loft/checkpoints"),
        r"pigeon",
    ),
    "storage that is a file": (Program.storage_is_a_file, r"plain"),
    "restarts fewer than none": (
        lambda p: p.env.set_restart_strategy(RestartStrategies.fixed_delay_restart(-1, 1_000)),
        r"attempts|-1",
    ),
    "a failure rate of none": (
        lambda p: p.env.set_restart_strategy(RestartStrategies.failure_rate_restart(0, 1_000, 100)),
        r"failure",
    ),
    "a restart strategy that is none": (
        lambda p: p.env.set_restart_strategy("often"),  # type: ignore[arg-type]
        r"often",
    ),
    "two operators with one uid": (Program.twice_one_uid, r'"keep"'),
    "forward between unequal widths": (Program.forward_to_another_width, r"parallelism"),
    "state without a key": (lambda p: p.numbers.process(Keep()), r"key_by"),
    "a buffer timeout below nothing": (lambda p: p.env.set_buffer_timeout(-7), r"-7"),
    "unaligned and at least once": (
        lambda p: (
            p.env.get_checkpoint_config()
            .set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
            .enable_unaligned_checkpoints()
        ),
        r"[Uu]naligned",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_work_is_refused_by_name_before_anything_is_written(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        pytest.fail("a job that cannot work got as far as Spark")

    monkeypatch.setattr("headrace.runtime.job.spark_application.obtain_session", unreachable)
    spoil, message = CASES[case]
    program = Program(tmp_path)
    with pytest.raises(HeadraceError, match=message):
        program.run(spoil)
    assert [path.name for path in tmp_path.rglob("*") if path.name != "plain"] == []
