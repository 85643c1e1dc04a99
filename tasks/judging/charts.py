"""Two small charts as inline SVG: intervals by stage, and a line over steps. Colours come from the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval; None was not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of dots; `style` is `solid` or `hollow`."""

    name: str
    dots: Sequence[Dot]
    style: str = "solid"


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Return round numbers that span [low, high]."""
    least = 1e-9 * max(1e-3, abs(low), abs(high))
    if high - low <= least:
        pad = max(0.5, 1e-3 * abs(low))
        low, high = low - pad, high + pad
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999), 10.0 * power)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def number(value: float) -> str:
    """Return a short form of a tick."""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class _Frame:
    left: float
    top: float
    right: float
    bottom: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Return the height of a value."""
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)


def _grid(frame: _Frame, marks: Sequence[float], form: str | None = None) -> list[str]:
    parts = []
    for mark in marks:
        y = frame.y(mark)
        label = number(mark) if form is None else format(mark, form)
        parts.append(f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{frame.left - 7:.1f}" y="{y + 3.5:.1f}">{escape(label)}</text>')
    return parts


def _dot(x: float, dot: Dot, frame: _Frame, kind: str, side: int) -> list[str]:
    if dot.value is None:
        return []
    y, parts = frame.y(dot.value), []
    if dot.low is not None and dot.high is not None:
        low, high = frame.y(dot.low), frame.y(dot.high)
        parts.append(
            f'<path class="bar {kind}" d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"/>'
        )
    parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    anchor = "end" if side < 0 else "start"
    parts.append(f'<text class="value {anchor}" x="{x + 9 * side:.1f}" y="{y + 4:.1f}">{dot.value:.3f}</text>')
    return parts


def interval_chart(title: str, labels: Sequence[str], series: Sequence[Series], height: int = 260) -> str:
    """Return shares in [0, 1] by label, each series beside the other, with intervals as whiskers."""
    width = max(480, 96 * len(labels) + 60)
    frame = _Frame(44, 16, width - 12, height - 34, 0.0, 1.0)
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" class="chart">']
    parts.append(f"<title>{escape(title)}</title>")
    parts += _grid(frame, [0.0, 0.25, 0.5, 0.75, 1.0], ".2f")
    slot = (frame.right - frame.left) / max(1, len(labels))
    gap = 14 if len(series) > 1 else 0
    places = [[frame.left + slot * (i + 0.5) + gap * (2 * s - (len(series) - 1)) / 2 for i in range(len(labels))]
              for s in range(len(series))]  # fmt: skip
    for s, row in enumerate(series):
        points = [
            f"{x:.1f},{frame.y(d.value):.1f}" for x, d in zip(places[s], row.dots, strict=True) if d.value is not None
        ]
        parts.append(f'<polyline class="join {row.style}" points="{" ".join(points)}"/>')
    for s, row in enumerate(series):
        side = -1 if len(series) > 1 and s == 0 else 1
        for x, dot in zip(places[s], row.dots, strict=True):
            parts += _dot(x, dot, frame, row.style, side)
    for i, label in enumerate(labels):
        x = frame.left + slot * (i + 0.5)
        parts.append(f'<text class="label middle" x="{x:.1f}" y="{height - 10}">{escape(label)}</text>')
    return "".join([*parts, "</svg>"])


def line_chart(title: str, points: Sequence[tuple[float, float | None]], height: int = 170) -> str:
    """Return one curve over steps; a step without a value leaves a gap."""
    known = [(x, y) for x, y in points if y is not None]
    if not known:
        return ""
    width = 320
    marks = ticks(min(y for _, y in known), max(y for _, y in known), 3)
    frame = _Frame(50, 14, width - 12, height - 26, marks[0], marks[-1])
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    span = (last - first) or 1.0

    def place(x: float) -> float:
        return frame.left + (frame.right - frame.left) * (x - first) / span

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" class="chart">']
    parts.append(f"<title>{escape(title)}</title>")
    parts += _grid(frame, marks)
    run: list[str] = []
    for x, y in [*points, (last, None)]:
        if y is not None:
            run.append(f"{place(x):.1f},{frame.y(y):.1f}")
        elif len(run) > 1:
            parts.append(f'<polyline class="line" points="{" ".join(run)}"/>')
            run = []
        elif run:
            at = run.pop().split(",")
            parts.append(f'<circle class="dot solid" cx="{at[0]}" cy="{at[1]}" r="2.5"/>')
    end_x, end_y = known[-1]
    parts.append(f'<circle class="dot solid" cx="{place(end_x):.1f}" cy="{frame.y(end_y):.1f}" r="3"/>')
    parts.append(f'<text class="tick middle" x="{frame.left:.1f}" y="{height - 8}">{number(first)}</text>')
    parts.append(f'<text class="tick end" x="{frame.right:.1f}" y="{height - 8}">step {number(last)}</text>')
    return "".join([*parts, "</svg>"])
