"""What a person sees while nodes run: bars on a terminal, now and then a line elsewhere."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from flows.ends import Event

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY = 15.0  # seconds between two lines about a node that runs, where there is no terminal
_FIRST = ("step", "rollouts", "success", "reward", "tokens_per_second", "loss")
_SHOWN = 5
_SIGNS = {"completed": "done", "gate_failed": "GATE FAILED", "held": "HELD", "failed": "FAILED"}


def figures_text(figures: dict[str, float]) -> str:
    """Return the figures worth a line, the usual ones first."""
    names = [n for n in _FIRST if n in figures] + [n for n in figures if n not in _FIRST and n != "steps"]
    return ", ".join(
        f"{n.replace('_per_second', '/s').replace('_', ' ')} {_number(figures[n])}" for n in names[:_SHOWN]
    )


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return seconds as a person says them."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


class Live:
    """Shows events until closed. `quiet` shows nothing. A reader that goes away (`… | head`) ends showing, not the run."""

    def __init__(self, stream: TextIO, total: int, *, quiet: bool = False) -> None:
        self._lock = threading.Lock()
        self._quiet = quiet
        self._total = total
        self._ended = 0
        self._began: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._rows: dict[str, TaskID] = {}
        self._stream = stream
        self._bars = _bars(stream) if stream.isatty() and not quiet else None

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Show one line."""
        if self._quiet:
            return
        try:
            if self._bars is not None:
                self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._stream.write(f"{text}\n")
                self._stream.flush()
        except OSError:  # nobody reads any more
            self._quiet = True

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if self._quiet:
            return
        with self._lock:
            show: Callable[[Event], None] = {
                "started": self._started,
                "progress": self._progress,
                "ended": self._over,
                "note": lambda e: self.say(f"{e.node}: {e.text}"),
            }[event.what]
            show(event)

    def _started(self, event: Event) -> None:
        self._began[event.node] = self._said[event.node] = time.monotonic()
        if self._bars is not None:
            self._rows[event.node] = self._bars.add_task("", total=1.0, node=event.node, text="")
        else:
            self.say(f"{event.node}: started")

    def _progress(self, event: Event) -> None:
        clock = time.monotonic()
        began = self._began.get(event.node, clock)
        parts = [event.text, figures_text(event.figures)]
        if event.share and clock - began > 3.0:
            parts.append(f"{duration((clock - began) / event.share * (1 - event.share))} to go")
        text = "  ".join(p for p in parts if p)
        if self._bars is not None:
            self._bars.update(self._rows[event.node], completed=event.share or 0.0, text=text)
        elif clock - self._said.get(event.node, clock) >= _EVERY:
            self._said[event.node] = clock
            share = f"{100 * event.share:.0f}%  " if event.share is not None else ""
            self.say(f"{event.node}: {share}{text}")

    def _over(self, event: Event) -> None:
        end = event.end
        assert end is not None
        self._ended += 1
        if self._bars is not None and event.node in self._rows:
            self._bars.remove_task(self._rows.pop(event.node))
        if end.status in ("reused", "blocked", "interrupted"):
            return
        took = f" ({duration(time.monotonic() - self._began[event.node])})" if event.node in self._began else ""
        reason = f": {end.reason}" if end.reason else ""
        self.say(f"{event.node}: {_SIGNS.get(end.status, end.status)}{took}{reason}  [{self._ended}/{self._total}]")


def _bars(stream: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.fields[node]}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(file=stream),
        refresh_per_second=4,
    )
