"""The demo as a picture: records read per second over time, with crashes, restores and checkpoints. Plain SVG."""

from __future__ import annotations

from html import escape

from headrace.demo.timeline import Timeline

WIDTH, HEIGHT = 1_000, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 84, 64
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

INK, PALE, GRID = "#1f2933", "#616e7c", "#e4e7eb"
FLOW, CRASH, RESTORE, CHECKPOINT = "#2f80c3", "#c92a2a", "#2b8a3e", "#8a5cc2"


def draw(timeline: Timeline, title: str, subtitle: str) -> str:
    """The picture as the text of an SVG file."""
    seconds = max(1.0, (timeline.ended_ms - timeline.began_ms) / 1_000)
    highest = _round_up(max((span.per_second for span in timeline.spans), default=1.0) * 1.05)
    canvas = _Canvas(timeline.began_ms, seconds, highest)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600" fill="{INK}">{escape(title)}</text>',
        f'<text x="{LEFT}" y="46" fill="{PALE}">{escape(subtitle)}</text>',
        *_axes(canvas),
        *_flow(timeline, canvas),
        *_checkpoints(timeline, canvas),
        *_marks(timeline, canvas),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Canvas:
    def __init__(self, began_ms: int, seconds: float, highest: float) -> None:
        self.began_ms = began_ms
        self.seconds = seconds
        self.highest = highest

    def x(self, at_ms: float) -> float:
        return LEFT + (at_ms - self.began_ms) / 1_000 / self.seconds * _PLOT_WIDTH

    def y(self, per_second: float) -> float:
        return TOP + _PLOT_HEIGHT * (1 - per_second / self.highest)


def _axes(canvas: _Canvas) -> list[str]:
    parts = []
    for i in range(5):
        value = canvas.highest * i / 4
        y = canvas.y(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{PALE}">{value:,.0f}</text>')
    every = next((s for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600) if canvas.seconds / s <= 14), 1_800)
    for second in range(0, int(canvas.seconds) + 1, every):
        x = canvas.x(canvas.began_ms + second * 1_000)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 32}" text-anchor="middle" fill="{PALE}">{second} s</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{TOP - 10}" fill="{PALE}">readings per second</text>')
    return parts


def _flow(timeline: Timeline, canvas: _Canvas) -> list[str]:
    """One area for each stretch without a pause, so that an outage is a gap down to zero."""
    areas: list[list[tuple[float, float]]] = []
    previous_end: int | None = None
    for span in timeline.spans:
        if previous_end != span.from_ms:
            areas.append([])
        y = canvas.y(span.per_second)
        areas[-1] += [(canvas.x(span.from_ms), y), (canvas.x(span.to_ms), y)]
        previous_end = span.to_ms
    floor = canvas.y(0)
    parts = []
    for area in areas:
        points = [(area[0][0], floor), *area, (area[-1][0], floor)]
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polygon points="{shown}" fill="{FLOW}" fill-opacity="0.18" stroke="{FLOW}" stroke-width="1.6"/>'
        )
    parts.append(f'<line x1="{LEFT}" y1="{floor:.1f}" x2="{WIDTH - RIGHT}" y2="{floor:.1f}" stroke="{INK}"/>')
    return parts


def _checkpoints(timeline: Timeline, canvas: _Canvas) -> list[str]:
    y = canvas.y(0) + 5
    return [
        f'<path d="M{canvas.x(at):.1f} {y:.1f} l-3.5 8 l7 0 z" fill="{CHECKPOINT}"/>' for at in timeline.checkpoints
    ]


def _marks(timeline: Timeline, canvas: _Canvas) -> list[str]:
    marks = [(crash.at_ms, CRASH, f"SIGKILL: {crash.victim}", True) for crash in timeline.crashes]
    for at_ms, restored in timeline.starts[1:]:
        since = "started over" if restored is None else f"restored from checkpoint {restored}"
        marks.append((at_ms, RESTORE, since, False))
    parts: list[str] = []
    labels: list[str] = []
    rows: list[float] = []
    """Where the last label of each row ends: a label goes into the first row that has room."""
    for at_ms, color, label, is_crash in sorted(marks):
        x = canvas.x(at_ms)
        width = 7.2 * len(label) + 12
        # To the left of a crash and to the right of a restore there is no outage, so the two labels keep apart.
        to_the_left = x - LEFT > width if is_crash else WIDTH - RIGHT - x < width
        begin = x - width if to_the_left else x
        row = next((i for i, end in enumerate(rows) if end <= begin), len(rows))
        rows[row : row + 1] = [begin + width]
        side, anchor = (-6, "end") if to_the_left else (6, "start")
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{canvas.y(0):.1f}" stroke="{color}" stroke-width="1.6" '
            'stroke-dasharray="5 3"/>'
        )
        labels.append(
            f'<text x="{x + side:.1f}" y="{TOP + 16 + 18 * row}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="600" stroke="white" stroke-width="3" paint-order="stroke">{escape(label)}</text>'
        )
    return parts + labels


def _legend() -> list[str]:
    y = HEIGHT - 12
    entries = (
        (FLOW, "readings per second"),
        (CRASH, "crash"),
        (RESTORE, "restored and running again"),
        (CHECKPOINT, "checkpoint complete"),
    )
    parts, x = [], LEFT
    for color, label in entries:
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}" fill="{INK}">{label}</text>')
        x += 40 + 7 * len(label)
    return parts


def _round_up(value: float) -> float:
    """The next number with one or two leading digits, so that the axis has round labels.

    >>> [_round_up(v) for v in (0.4, 7, 52_500, 101_000)]
    [1.0, 8.0, 60000.0, 120000.0]
    """
    unit = 1.0
    while value > unit * 10:
        unit *= 10
    for factor in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10):
        if value <= unit * factor:
            return unit * factor
    raise AssertionError(value)
