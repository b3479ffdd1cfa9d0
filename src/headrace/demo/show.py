"""The demo itself: starts the job, kills a worker, kills everything, starts the same command again, and counts.

DIR/alerts/          what the job committed
DIR/checkpoints/     its checkpoints
DIR/job.log          what it said, in all its processes
DIR/events.jsonl     every event, with its time
DIR/throughput.svg   the picture
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.demo import job
from headrace.demo.picture import draw
from headrace.demo.processes import kill_tree, kill_worker
from headrace.demo.timeline import Crash, Timeline, read_event_log, timeline_of
from headrace.demo.verdict import Verdict, expected_alerts, judge, received_alerts
from headrace.errors import ConfigurationError, JobFailedError
from headrace.runtime.job.status_text import duration

LOOK_EVERY_S = 0.02
PATIENCE_S = 300.0
"""How long any one step may take before the demo gives up."""
_MARK = ".headrace-demo"
_OURS = ("alerts", "checkpoints", "state", "job.log", "events.jsonl", "throughput.svg")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo is asked to do."""

    readings: int
    rate: float
    seed: int
    out: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went."""

    verdict: Verdict
    timeline: Timeline
    picture: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing double, and both kills hit a running job: else nothing was shown."""
        return self.verdict.exactly_once and [c.victim for c in self.timeline.crashes] == ["worker", "process tree"]


class Demo:
    """Made for one run."""

    def __init__(self, story: Story, say: Say) -> None:
        self._story = story
        self._say = say
        self._chance = random.Random(story.seed)
        self._started = time.monotonic()
        self._start_ms = time.time_ns() // 1_000_000
        self._crashes: list[Crash] = []
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> Outcome:
        """The whole story; whatever happens, no process is left behind."""
        _make_room(self._story.out)
        try:
            self._play()
        finally:
            if self._driver is not None and self._driver.poll() is None:
                kill_tree(self._driver)
        return self._judge()

    def _play(self) -> None:
        whole_s = self._story.readings / self._story.rate
        first = self._chance.uniform(0.10, 0.45) * whole_s
        # At least half of the readings are still to come then: it cannot have ended before it is killed again.
        second = self._chance.uniform(0.15, 0.45) * whole_s
        self._start()
        began = self._wait_until_running(starts=1)
        self._wait_until(began + first)
        self._kill_a_worker()
        again = self._wait_until_running(starts=2)
        self._wait_until(again + second)
        self._kill_everything()
        self._start()
        self._wait_until_running(starts=3)
        self._wait_for_the_end()

    # -- the steps

    def _start(self) -> None:
        """The same command every time."""
        story = self._story
        command = [sys.executable, "-m", "headrace.cli", "run", job.__file__]
        command += ["--checkpoint-dir", str(story.out / "checkpoints"), "--"]
        command += [str(story.out / "alerts"), str(story.readings), str(story.rate), str(story.seed)]
        command += [str(self._start_ms)]
        environment = dict(
            os.environ,
            HEADRACE_STATE_DIR=str(story.out / "state"),
            HEADRACE_EVENT_LOG=str(story.out / "events.jsonl"),
            HEADRACE_LOG="info",
        )
        with open(story.out / "job.log", "ab") as log:
            self._driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._note(f"started the job: headrace run job.py, process {self._driver.pid}")

    def _kill_a_worker(self) -> None:
        assert self._driver is not None
        tasks = sorted(self._status()["task_pids"].items())
        task, pid = self._chance.choice(tasks)
        at_ms = time.time_ns() // 1_000_000
        if not kill_worker(self._driver, pid):
            raise JobFailedError(f"Task {task} is process {pid} by the status file, but the job has no such process.")
        self._crashes.append(Crash(at_ms, "worker"))
        self._note(f"SIGKILL for worker {pid}, which ran task {task}")

    def _kill_everything(self) -> None:
        assert self._driver is not None
        at_ms = time.time_ns() // 1_000_000
        if self._driver.poll() is not None:
            raise JobFailedError(f"The job had ended before it could be killed.{self._last_words()}")
        count = kill_tree(self._driver)
        self._crashes.append(Crash(at_ms, "process tree"))
        self._note(f"SIGKILL for the whole process tree: {count} processes")

    def _wait_until_running(self, starts: int) -> float:
        """Wait until tasks have been started this often; when that was, on the monotonic clock."""

        def started() -> Timeline | None:
            timeline = self._timeline()
            return timeline if len(timeline.starts) >= starts else None

        timeline: Timeline = self._wait(started, "the tasks ran")
        at_ms, restored = timeline.starts[starts - 1]
        if self._crashes and starts > 1:
            took = duration((at_ms - self._crashes[-1].at_ms) / 1_000)
            since = "the beginning" if restored is None else f"checkpoint {restored}"
            self._note(f"running again after {took}, restored from {since}")
        else:
            self._note("running")
        return time.monotonic() - (time.time_ns() // 1_000_000 - at_ms) / 1_000

    def _wait_until(self, moment: float) -> None:
        self._wait(lambda: True if time.monotonic() >= moment else None, "it was killed")

    def _wait_for_the_end(self) -> None:
        driver = self._driver
        assert driver is not None
        deadline = time.monotonic() + PATIENCE_S + self._story.readings / self._story.rate
        while driver.poll() is None:
            if time.monotonic() > deadline:
                raise JobFailedError(f"The job did not come to its end.{self._last_words()}")
            time.sleep(LOOK_EVERY_S)
        if driver.returncode != 0:
            raise JobFailedError(f"The job ended with exit code {driver.returncode}.{self._last_words()}")
        self._note("finished")

    def _wait(self, look: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S + self._story.readings / self._story.rate
        while (found := look()) is None:
            if self._driver is not None and self._driver.poll() is not None:
                code = self._driver.returncode
                raise JobFailedError(f"The job ended with exit code {code} before {what}.{self._last_words()}")
            if time.monotonic() > deadline:
                raise JobFailedError(f"The job took too long before {what}.{self._last_words()}")
            time.sleep(LOOK_EVERY_S)
        return found

    # -- what is known

    def _judge(self) -> Outcome:
        story = self._story
        source = job.sensors(story.readings, story.rate, story.seed, self._start_ms)
        expected = expected_alerts(source, job.THRESHOLD)
        counted = source.expected_alerts(job.THRESHOLD)
        if len(expected) != counted:
            raise JobFailedError(f"The two ways to work out what to expect differ: {len(expected)} and {counted}.")
        verdict = judge(expected, received_alerts(story.out / "alerts"))
        timeline = self._timeline()
        picture = story.out / "throughput.svg"
        word = "nothing lost, nothing double" if verdict.exactly_once else "NOT exactly once"
        subtitle = f"{verdict.received:,} of {verdict.expected:,} alerts from {story.readings:,} readings: {word}"
        picture.write_text(draw(timeline, "headrace demo: one job, two crashes", subtitle))
        return Outcome(verdict, timeline, picture, time.monotonic() - self._started)

    def _timeline(self) -> Timeline:
        return timeline_of(read_event_log(self._story.out / "events.jsonl"), self._crashes)

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self._story.out / "state" / "demo.json").read_text())
        return status

    def _last_words(self) -> str:
        lines = (self._story.out / "job.log").read_text(errors="replace").splitlines()[-15:]
        return "\n".join(["", f"The end of {self._story.out / 'job.log'}:", *(f"  {line}" for line in lines)])

    def _note(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._started:6.1f} s  {text}")


def _make_room(out: Path) -> None:
    """An empty directory. Only what an earlier demo left is removed."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--out {out} is no directory. Choose another.")
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise ConfigurationError(f"--out {out} holds other files; the demo wants a directory of its own.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
    for name in _OURS:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (out / "alerts").mkdir()
