"""What a person sees while nodes run."""

import io

import pytest

import flows.live
from flows.ends import Event, NodeEnd
from flows.live import Live, duration, figures_text


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _events(live: Live) -> None:
    with live:
        live(Event("started", "teach", run_key="k"))
        live(
            Event("progress", "teach", text="training", share=0.5, figures={"loss": 0.25, "tokens_per_second": 9800.0})
        )
        live(Event("note", "teach", text="12 rows dropped"))
        live(Event("ended", "teach", end=NodeEnd("teach", "completed")))
        live(Event("ended", "gate.ship", end=NodeEnd("gate.ship", "gate_failed", "success 0.4 of 0.9", exit_code=3)))
        live(Event("ended", "data", end=NodeEnd("data", "reused")))


def test_without_a_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows.live, "_EVERY", 0.0)
    stream = io.StringIO()
    _events(Live(stream, 3))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "teach: started"
    assert lines[1] == "teach: 50%  training  tokens/s 9,800, loss 0.25"
    assert lines[2] == "teach: 12 rows dropped"
    assert lines[3].startswith("teach: done (0.0 s)")
    assert lines[4] == "gate.ship: GATE FAILED: success 0.4 of 0.9  [2/3]"
    assert len(lines) == 5


def test_on_a_terminal_there_are_bars(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = _Terminal()
    _events(Live(stream, 3))
    assert "teach" in stream.getvalue()
    assert "GATE FAILED" in stream.getvalue()


def test_quiet_shows_nothing():
    stream = io.StringIO()
    _events(Live(stream, 3, quiet=True))
    assert stream.getvalue() == ""


class _Closed(io.StringIO):
    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError("nobody reads")


def test_a_reader_that_is_gone_ends_showing_and_not_the_run():
    stream = _Closed()
    _events(Live(stream, 3))
    assert stream.tries == 1


def test_durations_and_figures_read_well():
    assert [duration(s) for s in (0.04, 12.4, 75, 7260)] == ["0.0 s", "12 s", "1 min 15 s", "2 h 01 min"]
    assert figures_text({"steps": 30, "reward": 0.1234, "step": 3}) == "step 3, reward 0.123"
