"""A ledger of the rollouts of a node: each as it ends, and its verdicts, so that neither is had twice."""

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specs.errors import DataError, StateError
from specs.records import Trajectory, trajectory_from
from tasks.files import Ledger

_FLUSH_SECONDS = 2.0
"""Most seconds of finished rollouts that a power cut takes; a kill takes none."""
_VERDICT_SECONDS = 0.5
"""Seconds of verdicts that a kill takes."""
_VERDICT = ("verdicts", "success", "reward", "reward_parts", "tags")
"""What judging fills in."""

Key = tuple[str, int]
"""Problem and sample."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rollouts that are drawn as one batch. Only with all of it beside it has each the bits of an undisturbed run."""

    name: str
    size: int


LOOSE = Part("", 0)
"""Rollouts that are good by themselves: the batch that they were drawn in is no part of what was promised."""


class RolloutLedger:
    """Finished rollouts of a node, one line each as soon as they end, and their verdicts. Drawn and judged once."""

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path, checked=True)
        self._flushed = self._written = time.monotonic()
        self.damaged = 0
        """Lines that were left out because their content had changed."""
        self.loose = 0
        """Rollouts of begun parts that were kept."""
        self._judged: set[Key] = set()
        self._pending: list[dict[str, Any]] = []

    def keep(self, trajectory: Trajectory, part: Part = LOOSE) -> None:
        """Note a rollout that has ended; one of a part is written with the others. StateError where the disk is full."""
        self._note(trajectory, {"part": part.name, "of": part.size, "trajectory": _data(trajectory)})
        if not part.size:
            self.write()

    def keep_verdict(self, trajectory: Trajectory) -> None:
        """Note what came of judging a rollout that was kept before."""
        verdict = {name: getattr(trajectory, name) for name in _VERDICT}
        self._note(trajectory, {"verdict": verdict | {"verdicts": [asdict(v) for v in trajectory.verdicts]}})
        if time.monotonic() - self._written >= _VERDICT_SECONDS:
            self.write()

    def loosen(self, part: Part) -> None:
        """Note that what is kept of a begun part is to be used, although the rest will be drawn in another batch."""
        if part.size:
            self._pending.append({"loose": part.name})

    def write(self, *, durable: bool = False) -> None:
        """Write what was noted; `durable` waits for the disk, which is done every two seconds anyway."""
        self._ledger.path.parent.mkdir(parents=True, exist_ok=True)
        now = self._written = time.monotonic()
        durable = durable or now - self._flushed >= _FLUSH_SECONDS
        self._flushed = now if durable else self._flushed
        records, self._pending = self._pending, []
        try:
            self._ledger.append(records, durable=durable)
        except (TypeError, ValueError, RecursionError) as e:
            raise DataError(f"rollouts of {_named(records)}: one holds what JSON cannot ({e})") from e

    def _note(self, trajectory: Trajectory, what: dict[str, Any]) -> None:
        self._pending.append({"problem": trajectory.problem_id, "sample": trajectory.sample, **what})

    def read(self) -> dict[Key, Trajectory]:
        """Return the rollouts that are used again: of whole parts, of parts that were loosened, and loose ones."""
        found: dict[Key, dict[str, Any]] = {}
        verdicts: dict[Key, dict[str, Any]] = {}
        parts: dict[str, set[Key]] = defaultdict(set)
        loosened: set[str] = set()
        for record in self._ledger:
            if "loose" in record:
                loosened.add(record["loose"])
                continue
            key = (record["problem"], record["sample"])
            if "verdict" in record:
                verdicts[key] = record["verdict"]
            else:
                found[key] = record
                verdicts.pop(key, None)  # of the copy before it
                parts[record["part"]].add(key)
        self.damaged = self._ledger.damaged
        kept: dict[Key, Trajectory] = {}
        for key, record in found.items():
            name, size = record["part"], record["of"]
            begun = len(parts[name]) < size
            if begun and name not in loosened:
                continue
            self.loose += begun
            kept[key] = _trajectory({**record["trajectory"], **verdicts.get(key, {})}, self._ledger.path)
        self._judged = verdicts.keys() & kept.keys()
        return kept

    def judged(self, trajectory: Trajectory) -> bool:
        """Return whether a rollout that was read has its verdicts."""
        return (trajectory.problem_id, trajectory.sample) in self._judged

    def notes(self) -> list[str]:
        """Return what a person should know about the rollouts that were used again."""
        notes: list[str] = []
        if self.damaged:
            notes.append(f"{self.damaged} lines of the ledger of rollouts were damaged; theirs were drawn again")
        if self.loose:
            notes.append(
                f"{self.loose} rollouts of a batch that was interrupted were kept; the others of it were drawn without "
                "them, so their logprobs are those of an undisturbed run up to rounding"
            )
        return notes


def _named(records: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(str(r.get("problem")) for r in records[:3])) + (" …" if len(records) > 3 else "")


def _data(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as data; its lists of tokens are not copied."""
    data = {f.name: getattr(trajectory, f.name) for f in fields(trajectory)}
    return data | {"turns": [asdict(t) for t in trajectory.turns], "verdicts": [asdict(v) for v in trajectory.verdicts]}


def _trajectory(data: dict[str, Any], path: Path) -> Trajectory:
    try:
        return trajectory_from(data)
    except (TypeError, KeyError) as e:
        raise StateError(
            f"{path}: trajectory {data.get('id')!r} was kept by another version of tutelage ({e}); remove the file to "
            "draw its rollouts again"
        ) from e
