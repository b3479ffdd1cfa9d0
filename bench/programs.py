"""How each program of a measure is started, and how its one JSON line is taken back.

A program runs in a process group of its own; past the time limit that group, and nothing else, is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import dataset, environments
from bench.measures import Run

BENCH = Path(__file__).parent
ROOT = BENCH.parent
SCRATCH = BENCH / ".scratch"

OURS = "headrace"
OUR_MODULES = {
    OURS: "bench.headrace_job",
    "headrace-join": "bench.join_job",
    "headrace-windows": "bench.window_job",
    "headrace-checkpoints": "bench.checkpoint_job",
    "headrace-kafka": "bench.kafka_job",
    "headrace-dataframe": "bench.dataframe_job",
    # Peers that need the project's own packages for their broker.
    "kafka-transform-with-state": "bench.kafka_spark",
    "kafka-bare-loop": "bench.kafka_bare_loop",
}
ENVIRONMENT_OF = {
    "bare-loop": "bare-loop",
    "bytewax": "bytewax",
    "transform-with-state": "spark",
    "transform-with-state-latency": "spark",
    "stream-join": "spark",
    "bytewax-windows": "bytewax",
    "spark-windows": "spark",
    "flink": "flink",
}
SCRIPT_OF = {
    "bare-loop": "bare_loop.py",
    "bytewax": "bytewax_job.py",
    "transform-with-state": "transform_with_state.py",
    "transform-with-state-latency": "transform_with_state_latency.py",
    "stream-join": "stream_join.py",
    "bytewax-windows": "bytewax_windows.py",
    "spark-windows": "spark_windows.py",
}
WARM_UP_KEYS = 10_000
# Enough for a JVM to compile what the job uses; Spark's Python side needs its workers started, no more.
WARM_UP_ROWS = {OURS: 2_000_000, "flink": 2_000_000, "transform-with-state": 100_000}

# What Flink's own start scripts open for its serializers on Java 17.
FLINK_JAVA = (
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.net", "java.util", "java.util.concurrent")
    ),
    "-Xmx3g",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class MissingProgramError(RuntimeError):
    """A side cannot run at all, for want of the program or its environment: its figures are missing, not zero."""


class FailedRunError(RuntimeError):
    """A program ran and ended badly, printed no line, or counted wrongly."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a person may change about every run of a measure."""

    timeout_seconds: float = 1_800
    rows: int | None = None
    """Instead of the measure's rows, both sides: for smoke runs, never judged."""
    seconds: float | None = None
    """Instead of the measure's seconds in workloads with a rate: for smoke runs, never judged."""

    @property
    def smoke(self) -> bool:
        """Whether the measure is cut short, so that its figures are no verdict."""
        return self.rows is not None or self.seconds is not None


def run(side: Run, variant: tuple[str, ...], limits: Limits) -> dict[str, Any]:
    """Run one side once, in one variant, and return its line, checked against the dataset's alerts."""
    data = None
    if side.data is not None:
        rows = min(side.data.rows, limits.rows or side.data.rows)
        data = dataset.ensure(keys=min(side.data.keys, rows), rows=rows)
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{side.program}-", dir=SCRATCH) as scratch:
        command = _command(side, variant, data, limits, Path(scratch))
        line = run_for_line(command, limits.timeout_seconds, Path(scratch))
    if data is not None:
        check_counts(side.program, line, data)
    return line


def _command(
    side: Run, variant: tuple[str, ...], data: dataset.Dataset | None, limits: Limits, scratch: Path
) -> list[str]:
    command = _program(side.program, scratch)
    command += [*side.arguments, *variant]
    if data is not None:
        command += ["--data", str(data.directory)]
        if side.program in WARM_UP_ROWS:
            rows = min(WARM_UP_ROWS[side.program], limits.rows or WARM_UP_ROWS[side.program])
            warm_up = dataset.ensure(keys=min(WARM_UP_KEYS, data.keys), rows=rows)
            command += ["--warm-up", str(warm_up.directory)]
    elif limits.rows is not None and "--rows" in side.arguments:
        command += ["--rows", str(limits.rows)]
    if limits.seconds is not None and "--seconds" in side.arguments:
        # The last one given counts, for argparse and for the contract of our own job.
        command += ["--seconds", str(limits.seconds), "--warm-up-seconds", str(limits.seconds / 3)]
    return command


def _program(name: str, scratch: Path) -> list[str]:
    if name in OUR_MODULES:
        if importlib.util.find_spec(OUR_MODULES[name]) is None:
            raise MissingProgramError(
                f"{OUR_MODULES[name]} is not there, so our own side cannot run and its figures are missing. "
                "Its command line is fixed in the docstring of bench/harness.py."
            )
        return [sys.executable, "-m", OUR_MODULES[name], "--scratch", str(scratch)]
    try:
        environment = environments.ensure(ENVIRONMENT_OF[name])
    except environments.InstallError as error:
        raise MissingProgramError(f"The peer {name} is not installed, its figures are missing: {error}") from error
    if name == "flink":
        classpath = f"{environment / 'classes'}:{environment / 'libs'}/*"
        return ["java", *FLINK_JAVA, "-cp", classpath, "bench.JumpJob", "--scratch", str(scratch)]
    return [str(environment / "bin" / "python"), str(BENCH / "peers" / SCRIPT_OF[name])]


def run_for_line(command: list[str], timeout_seconds: float, scratch: Path) -> dict[str, Any]:
    """Run a program to its end; its last JSON line with a "peer" in it is the result."""
    # A fixed hash seed and no site surprises: what differs between runs is the machine, not the interpreter.
    environment = dict(os.environ, PYTHONHASHSEED="0", TMPDIR=str(scratch))
    with open(scratch / "stderr", "w+b") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise FailedRunError(f"{' '.join(command)} took more than {timeout_seconds:.0f} s.") from error
            raise
        errors.seek(0)
        words = errors.read().decode(errors="replace")[-3000:]
    if process.returncode:
        raise FailedRunError(f"{' '.join(command)} ended with {process.returncode}:\n{words}")
    for text in reversed(output.decode(errors="replace").splitlines()):
        # Spark's progress bar may stand on the same line, ahead of ours.
        start = text.find('{"peer"')
        if start >= 0:
            return dict(json.loads(text[start:]))
    raise FailedRunError(f'{" ".join(command)} printed no line that begins with {{"peer".\n{words}')


def check_counts(program: str, line: dict[str, Any], data: dataset.Dataset) -> None:
    if (line["records"], line["alerts"]) != (data.rows, data.alerts):
        raise FailedRunError(
            f"{program} is wrong: {line['records']} records and {line['alerts']} alerts, "
            f"where {data.directory.name} has {data.rows} and {data.alerts}. Its speed does not count."
        )
