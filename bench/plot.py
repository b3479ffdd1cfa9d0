"""A line chart as SVG, both axes logarithmic: a page of its own, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 50, 60
COLOURS = ("#1f5fa8", "#999999", "#b5442e", "#3d8b40")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; points with a coordinate of 0 or less have no place and are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def write_plot(path: Path, title: str, x_title: str, y_title: str, series: Sequence[Series]) -> None:
    """Write the chart; an earlier one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_svg(title, x_title, y_title, series))


def _svg(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> str:
    shown = [(s, [(x, y) for x, y in s.points if x > 0 and y > 0]) for s in series]
    xs = _bounds([x for _, points in shown for x, _ in points])
    ys = _bounds([y for _, points in shown for _, y in points])

    def at_x(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(x) - xs[0]) / (xs[1] - xs[0])

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(y) - ys[0]) / (ys[1] - ys[0])

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(f'{y_title}, against {x_title}: ' + ', '.join(s.name for s in series))}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(20 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>',
    ]
    for power in range(xs[0], xs[1] + 1):
        x = at_x(10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(ys[0], ys[1] + 1):
        y = at_y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for number, (one, points) in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if one.dashed else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if not one.dashed:
            parts += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        y = TOP + 16 + 18 * number
        parts.append(f'<text x="{LEFT + 12}" y="{y}" fill="{colour}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bounds(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten between which all values lie."""
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))
