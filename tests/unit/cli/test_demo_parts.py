"""The parts of the demo without Spark: its verdict must be able to fail, its picture must say what happened."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from headrace.cli.demo import show
from headrace.cli.main import main
from headrace.connectors.sensors import SensorSource
from headrace.demo.job import THRESHOLD, sensors
from headrace.demo.picture import draw
from headrace.demo.processes import descendants, kill_tree, kill_worker, process_tree
from headrace.demo.show import Outcome
from headrace.demo.timeline import Crash, Span, Timeline, read_event_log, timeline_of
from headrace.demo.verdict import Alert, Verdict, expected_alerts, judge, received_alerts
from headrace.testing.source_driver import SourceDriver

BOTH = [Crash(1_000, "worker"), Crash(5_000, "process tree")]


class TestVerdict:
    expected: ClassVar[set[Alert]] = {("a", 1), ("a", 2), ("b", 1)}

    def test_every_alert_once_is_exactly_once(self) -> None:
        verdict = judge(self.expected, [("b", 1), ("a", 2), ("a", 1)])
        assert verdict == Verdict(expected=3, received=3, lost=0, duplicated=0, unexpected=0)
        assert verdict.exactly_once

    def test_a_lost_alert_is_noticed(self) -> None:
        verdict = judge(self.expected, [("a", 1), ("b", 1)])
        assert (verdict.lost, verdict.exactly_once) == (1, False)

    def test_an_alert_that_came_twice_is_noticed(self) -> None:
        verdict = judge(self.expected, [("a", 1), ("a", 2), ("b", 1), ("a", 2)])
        assert (verdict.duplicated, verdict.exactly_once) == (1, False)

    def test_one_lost_and_one_double_do_not_make_up_for_each_other(self) -> None:
        verdict = judge(self.expected, [("a", 1), ("a", 1), ("b", 1)])
        assert (verdict.received, verdict.lost, verdict.duplicated, verdict.exactly_once) == (3, 1, 1, False)

    def test_an_alert_that_should_not_be_is_noticed(self) -> None:
        verdict = judge(self.expected, [*self.expected, ("c", 9)])
        assert (verdict.unexpected, verdict.exactly_once) == (1, False)

    @pytest.mark.parametrize(
        ("lost", "duplicated", "crashes", "ok"),
        [(0, 0, BOTH, True), (1, 0, BOTH, False), (0, 1, BOTH, False), (0, 0, BOTH[:1], False)],
    )
    def test_the_demo_fails_for_anything_lost_or_double_and_if_it_killed_nothing(
        self, lost: int, duplicated: int, crashes: list[Crash], ok: bool
    ) -> None:
        verdict = Verdict(expected=3, received=3 - lost + duplicated, lost=lost, duplicated=duplicated, unexpected=0)
        assert Outcome(verdict, Timeline(crashes=crashes), Path("x.svg"), 1.0).ok is ok

    @pytest.mark.parametrize("readings", [1, 999, 1_000, 1_001, 30_500, 1_200_000])
    def test_what_is_expected_agrees_with_the_sources_own_count(self, readings: int) -> None:
        source = sensors(readings, rate=50_000, seed=7, start_ms=1_700_000_000_000)
        assert len(expected_alerts(source, THRESHOLD)) == source.expected_alerts(THRESHOLD)

    def test_what_is_expected_is_what_a_plain_loop_over_the_readings_finds(self) -> None:
        source = SensorSource(5_000, 100, None, 3, start_ms=0, interval_ms=20)
        last: dict[str, float] = {}
        found: set[Alert] = set()
        for record in SourceDriver(source, parallelism=2).run():
            row = record.value
            if row.id in last and abs(row.temperature - last[row.id]) > THRESHOLD:
                found.add((row.id, row.timestamp))
            last[row.id] = row.temperature
        assert expected_alerts(source, THRESHOLD) == found

    def test_only_committed_files_are_read(self, tmp_path: Path) -> None:
        (tmp_path / ".staging").mkdir()
        (tmp_path / ".staging" / "part.jsonl").write_text('{"id": "x", "timestamp": 1}\n')
        (tmp_path / "part-0.jsonl").write_text('{"id": "a", "timestamp": 1}\n{"id": "a", "timestamp": 2}\n')
        assert received_alerts(tmp_path) == [("a", 1), ("a", 2)]


class TestTimeline:
    entries = (
        {"kind": "opened", "at_ms": 0, "pid": 1},
        {"kind": "running", "at_ms": 100, "attempt": 1, "restored": None},
        {"kind": "report", "at_ms": 1_100, "records_read": 1_000},
        {"kind": "checkpoint", "at_ms": 1_200, "checkpoint_id": 1},
        {"kind": "report", "at_ms": 1_200, "records_read": 1_000},
        {"kind": "failure", "at_ms": 1_600},
        {"kind": "restarting", "at_ms": 1_600},
        {"kind": "report", "at_ms": 1_700, "records_read": 1_000},
        {"kind": "running", "at_ms": 2_000, "attempt": 2, "restored": 1},
        {"kind": "report", "at_ms": 3_000, "records_read": 3_000},
        {"kind": "opened", "at_ms": 6_000, "pid": 2},
        {"kind": "report", "at_ms": 6_000, "records_read": 0},
        {"kind": "running", "at_ms": 7_000, "attempt": 3, "restored": 1},
        {"kind": "report", "at_ms": 8_000, "records_read": 500},
    )

    def test_rates_recoveries_and_restarts_are_read_off_the_log(self) -> None:
        timeline = timeline_of(self.entries, [Crash(1_500, "worker"), Crash(4_000, "process tree")])
        assert timeline.spans == [Span(100, 1_100, 1_000), Span(2_000, 3_000, 2_000), Span(7_000, 8_000, 500)]
        assert [timeline.recovery_ms(crash) for crash in timeline.crashes] == [500, 3_000]
        assert (timeline.restarts, timeline.processes, timeline.checkpoints) == (1, 2, [1_200])
        assert timeline.records_per_second() == pytest.approx(3_500 / 3)

    def test_a_crash_that_nothing_came_back_from_has_no_recovery(self) -> None:
        assert timeline_of(self.entries, []).recovery_ms(Crash(9_000, "worker")) is None

    def test_half_a_line_of_a_killed_process_is_no_entry(self, tmp_path: Path) -> None:
        log = tmp_path / "events.jsonl"
        log.write_text(json.dumps(self.entries[0]) + '\n{"kind": "repo')
        assert read_event_log(log) == [self.entries[0]]

    def test_the_picture_shows_every_crash_restore_and_checkpoint(self) -> None:
        timeline = timeline_of(self.entries, [Crash(1_500, "worker"), Crash(4_000, "process tree")])
        svg = draw(timeline, "one <job>", "15 of 15")
        root = ElementTree.fromstring(svg)
        names = {name: f"{{http://www.w3.org/2000/svg}}{name}" for name in ("text", "polygon", "path")}
        texts = [element.text for element in root.iter(names["text"])]
        for wanted in ("one <job>", "SIGKILL: worker", "SIGKILL: process tree", "restored from checkpoint 1"):
            assert wanted in texts
        assert len(list(root.iter(names["polygon"]))) == 3, "an outage is a gap"
        assert len(list(root.iter(names["path"]))) == 1, "a mark for the checkpoint"

    def test_labels_of_marks_close_to_each_other_stand_in_different_rows(self) -> None:
        timeline = timeline_of(self.entries, [Crash(2_000, "worker"), Crash(2_010, "process tree")])
        root = ElementTree.fromstring(draw(timeline, "t", "s"))
        labels = [e for e in root.iter("{http://www.w3.org/2000/svg}text") if "SIGKILL" in (e.text or "")]
        assert len({label.get("y") for label in labels}) == 2

    def test_a_demo_in_which_nothing_ran_still_has_a_picture(self) -> None:
        ElementTree.fromstring(draw(Timeline(), "t", "s"))

    def test_the_table_says_what_was_found(self) -> None:
        timeline = timeline_of(self.entries, [Crash(1_500, "worker"), Crash(4_000, "process tree")])
        console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
        show(Outcome(Verdict(3, 3, 1, 1, 0), timeline, Path("x.svg"), 61.0), 3_500, console)
        text = " ".join(console.export_text().split())
        for wanted in (
            "readings 3,500",
            "alerts expected 3",
            "alerts received 3",
            "lost 1",
            "duplicated 1",
            "checkpoints 1",
            "restarts 1 within the process, 1 new process",
            "time to recover worker 500 ms; process tree 3.0 s",
            "records/s 1,167 while running",
            "NOT exactly once.",
        ):
            assert wanted in text


class TestProcesses:
    def test_a_tree_is_found_by_who_started_whom(self) -> None:
        assert descendants(5, {5: 1, 9: 5, 7: 9, 8: 1, 10: 7}) == [5, 9, 7, 10]

    def test_the_whole_tree_is_killed_and_nothing_else(self) -> None:
        bystander = subprocess.Popen(["sleep", "600"])
        try:
            script = (
                "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
            )
            driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
            assert driver.stdout is not None
            child = int(driver.stdout.readline())
            assert process_tree(driver.pid) == [driver.pid, child]
            assert not kill_worker(driver, bystander.pid), "a process of somebody else is left alone"
            assert kill_tree(driver) == 2
            assert process_tree(child) == [child]
            assert driver.returncode == -9
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_one_worker_is_killed_alone(self) -> None:
        script = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); print(p.wait())"
        driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert kill_worker(driver, int(driver.stdout.readline()))
        assert driver.stdout.read() == b"-9\n"
        assert driver.wait() == 0


def test_a_directory_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "alerts").mkdir()
    (tmp_path / "alerts" / "precious.txt").write_text("mine")
    began = time.monotonic()
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 3
    assert "the demo wants a directory of its own" in result.stderr
    assert (tmp_path / "alerts" / "precious.txt").read_text() == "mine"
    assert time.monotonic() - began < 60
