"""What people see of a running job: a live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
from terminal_screen import Screen

from headrace.errors import ConfigurationError
from headrace.plan.settings import CheckpointSettings, JobSettings
from headrace.runtime.job.live_line import LiveLine, LogLines, TerminalLine
from headrace.runtime.job.observers import Telling, attach_observers, telling
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard, StatusReport

SETTINGS = JobSettings("alerts", "alerts", checkpointing=CheckpointSettings(interval_ms=1_000))


def new_board() -> StatusBoard:
    return StatusBoard(StatusReport(job_id="alerts", name="alerts", pid=4711))


def start(board: StatusBoard, restored: int | None = None) -> None:
    board.update(status=JobStatus.RUNNING, attempt=1)
    board.event("running", attempt=1, restored=restored, started_in_ms=300)


def report_progress(board: StatusBoard) -> None:
    board.update(
        read_per_second=50_012.4,
        written_per_second=750.0,
        latency_ms=12.3,
        watermark_lag_ms=340,
        last_checkpoint=CheckpointReport(12, "checkpoint", 0, 110, 1_300_000, 1_000, 5, 3),
    )


class TestOnATerminal:
    @pytest.fixture
    def screen(self, monkeypatch: pytest.MonkeyPatch) -> Screen:
        monkeypatch.setenv("COLUMNS", "140")
        return Screen()

    @pytest.fixture
    def board(self, screen: Screen) -> StatusBoard:
        board = new_board()
        self.line = LiveLine(SETTINGS, board, TerminalLine(screen))
        board.listeners.append(self.line.on_report)
        board.event_listeners.append(self.line.on_event)
        return board

    def test_one_line_is_drawn_again_and_again(self, screen: Screen, board: StatusBoard) -> None:
        assert screen.lines() == ["▸ alerts  starting Spark …"]
        board.update(status=JobStatus.RUNNING)
        report_progress(board)
        report_progress(board)
        assert screen.lines() == [
            "▸ alerts  in 50,012/s  out 750/s  latency 12 ms  lag 340 ms  checkpoint 12 in 110 ms, 1.2 MiB  restarts 0"
        ]

    def test_tasks_on_the_way_to_their_start_are_shown_as_such(self, screen: Screen, board: StatusBoard) -> None:
        board.update(starting="restoring state and opening functions, 1 of 4 tasks ready")
        assert screen.lines() == ["▸ alerts  restoring state and opening functions, 1 of 4 tasks ready"]
        board.update(status=JobStatus.RUNNING, starting="")
        board.update(status=JobStatus.RESTARTING, starting="2 of 4 tasks have joined")
        assert screen.lines()[-1].startswith("▸ alerts  restarting  2 of 4 tasks have joined  in 0/s")

    def test_events_stay_above_the_line(self, screen: Screen, board: StatusBoard) -> None:
        start(board)
        board.event("failure", error="TaskDiedError", message="Task 1.0 (pid 9) ended without a word.")
        board.update(status=JobStatus.RESTARTING, restarts=1)
        board.event("restarting", delay_ms=200)
        *said, live = screen.lines()
        assert said[0].startswith('headrace: job "alerts" running, pid 4711, attempt 1, from the beginning; ')
        assert said[1:] == [
            'headrace: job "alerts" lost attempt 1: Task 1.0 (pid 9) ended without a word.',
            'headrace: job "alerts" restarts in 200 ms (restart 1)',
        ]
        assert live.startswith("▸ alerts  restarting  in 0/s")

    def test_a_narrow_terminal_cuts_the_line_and_never_wraps_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        narrow, board = Screen(), new_board()
        board.listeners.append(LiveLine(SETTINGS, board, TerminalLine(narrow)).on_report)
        board.update(status=JobStatus.RUNNING)
        report_progress(board)
        (live,) = narrow.lines()
        assert len(live) == 39
        assert live.endswith("…")

    def test_the_end_leaves_a_summary_and_no_live_line(self, screen: Screen, board: StatusBoard) -> None:
        start(board)
        board.update(status=JobStatus.FINISHED, records_read=1_000, records_written=15, checkpoints_completed=1)
        self.line.close()
        *_, summary, rest = screen.lines()
        assert rest == ""
        assert summary.startswith('headrace: job "alerts" finished after ')
        assert summary.endswith(": 1,000 records in, 15 out, 1 checkpoint, 0 restarts")

    def test_a_record_with_brackets_is_shown_as_it_is(self, screen: Screen, board: StatusBoard) -> None:
        board.event("failure", error="E", message="failed on record [red]5[/red]")
        assert "failed on record [red]5[/red]" in screen.lines()[0]


def test_what_the_program_prints_goes_above_the_line_and_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    terminal = TerminalLine(screen)
    line = LiveLine(SETTINGS, new_board(), terminal)
    print("first result,", "x" * 200)
    print("half a line", end="")
    assert screen.lines()[-1] == "half a line"
    print(" and its end")
    assert screen.lines() == [
        f"first result, {'x' * 200}",
        "half a line and its end",
        "▸ alerts  starting Spark …",
    ]
    line.close()
    assert sys.stdout is screen
    assert sys.stderr is screen


def test_output_that_is_redirected_to_a_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, file = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(sys, "stderr", screen)
    line = LiveLine(SETTINGS, new_board(), TerminalLine(screen))
    assert sys.stdout is file
    line.close()


def test_two_jobs_share_the_line() -> None:
    screen = Screen()
    terminal = TerminalLine(screen)
    other = JobSettings("counts", "counts")
    first = LiveLine(SETTINGS, new_board(), terminal)
    second = LiveLine(other, StatusBoard(StatusReport(job_id="counts", name="counts")), terminal)
    assert screen.lines() == ["▸ alerts  starting Spark …   ▸ counts  starting Spark …"]
    first.close()
    assert screen.lines()[-1] == "▸ counts  starting Spark …"
    second.close()


class TestElsewhere:
    def test_a_line_for_each_event_and_one_every_few_seconds(self) -> None:
        out, now = io.StringIO(), [0.0]
        board = new_board()
        lines = LogLines(SETTINGS, board, out, every_s=5.0, clock=lambda: now[0])
        board.listeners.append(lines.on_report)
        board.event_listeners.append(lines.on_event)
        start(board, restored=7)
        for second in range(1, 12):
            now[0] = float(second)
            report_progress(board)
            board.event("checkpoint", checkpoint_id=second, duration_ms=10, bytes=1)
        board.update(status=JobStatus.FINISHED)
        lines.close()
        said = [line.partition(" headrace: ")[2] for line in out.getvalue().splitlines()]
        assert said[0] == 'job "alerts" starting'
        assert said[1].startswith('job "alerts" running, pid 4711, attempt 1, restored from checkpoint 7; ')
        status = (
            'job "alerts": in 50,012/s, out 750/s, latency 12 ms, lag 340 ms, checkpoint 12 in 110 ms, 1.2 MiB, '
            "restarts 0"
        )
        assert said[2:] == [
            status,
            status,
            'job "alerts" finished after 11.0 s: 0 records in, 0 out, 0 checkpoints, 0 restarts',
        ]

    def test_a_long_restore_is_told_of_from_time_to_time(self) -> None:
        out, now = io.StringIO(), [0.0]
        board = new_board()
        lines = LogLines(SETTINGS, board, out, every_s=5.0, clock=lambda: now[0])
        board.listeners.append(lines.on_report)
        for second in range(12):
            now[0] = float(second)
            board.update(starting=f"opening functions, {second} of 20 tasks ready")
        board.update(status=JobStatus.FAILING, starting="")
        now[0] = 100.0
        board.update(status=JobStatus.RESTARTING)
        said = [line.partition(" headrace: ")[2] for line in out.getvalue().splitlines()]
        assert said == [
            'job "alerts" starting',
            'job "alerts": opening functions, 5 of 20 tasks ready',
            'job "alerts": opening functions, 10 of 20 tasks ready',
        ]

    def test_the_ready_line_says_what_the_storage_survives(self) -> None:
        out = io.StringIO()
        board = new_board()
        board.event_listeners.append(LogLines(SETTINGS, board, out).on_event)
        start(board)
        assert (
            "checkpoints every 1.0 s in coordinator memory, which survives the loss of a task, not of this process"
            in out.getvalue()
        )

    def test_a_reader_that_is_gone_does_not_end_the_job(self) -> None:
        class Closed(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        board = new_board()
        board.event_listeners.append(LogLines(SETTINGS, board, Closed()).on_event)
        start(board)


class TestWhoIsTold:
    def heard(self, patch: pytest.MonkeyPatch, stderr: io.StringIO) -> str:
        """What a job says from its start to its end."""
        patch.setattr(sys, "stderr", stderr)
        for close in attach_observers(new_board(), SETTINGS):
            close()
        return stderr.getvalue()

    def test_a_program_without_a_terminal_is_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.heard(monkeypatch, io.StringIO()) == ""

    def test_unless_the_log_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_LOG", "info")
        assert 'headrace: job "alerts" starting' in self.heard(monkeypatch, io.StringIO())

    def test_the_command_always_tells(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with telling(Telling.ALWAYS):
            assert 'headrace: job "alerts" starting' in self.heard(monkeypatch, io.StringIO())

    def test_unless_it_is_told_to_be_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_LOG", "off")
        with telling(Telling.ALWAYS):
            assert self.heard(monkeypatch, io.StringIO()) == ""

    def test_a_program_on_a_terminal_gets_the_live_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        assert "▸ alerts" in self.heard(monkeypatch, Screen())

    def test_a_wrong_wish_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_LOG", "loud")
        with pytest.raises(ConfigurationError, match="HEADRACE_LOG is 'loud'; wanted info or off"):
            self.heard(monkeypatch, io.StringIO())
