"""What a task prints: whole lines, and neither an endless wait nor endless memory while the driver takes none."""

from __future__ import annotations

from headrace.runtime.task.printing import MAX_WAITING_BYTES, WAIT_S, DriverStdout


class Room:
    """Room for lines on their way to the driver, or none."""

    def __init__(self) -> None:
        self.free = True
        self.waits: list[float] = []

    def wait(self, waiting_bytes: int, limit_s: float) -> bool:
        assert waiting_bytes == MAX_WAITING_BYTES
        self.waits.append(limit_s)
        return self.free


def test_whole_lines_are_sent_and_the_rest_waits_for_its_end() -> None:
    sent: list[tuple[str, ...]] = []
    stdout = DriverStdout(sent.append)
    for text in ("a", "b\nc\nd", "\n", "e"):
        assert stdout.write(text) == len(text)
    assert sent == [("ab", "c"), ("d",)]


def test_lines_that_the_driver_does_not_take_are_dropped_and_counted_after_one_wait() -> None:
    sent: list[tuple[str, ...]] = []
    room = Room()
    stdout = DriverStdout(sent.append, room.wait)
    stdout.write("one\n")
    room.free = False
    stdout.write("two\nthree\n")
    stdout.write("four\n")
    assert room.waits == [WAIT_S, WAIT_S, 0.0], "only the first lines that find no room wait for it"
    room.free = True
    stdout.write("five\n")
    stdout.write("six\n")
    assert sent == [
        ("one",),
        ("[headrace: 3 printed lines were dropped: the driver took none]", "five"),
        ("six",),
    ]
