"""Registered policies: promoted once, rolled back, never from a damaged file."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows import registry
from flows.context import MetricSpool, NodeContext
from flows.registry import Candidate
from flows.work.promotion import promote, registered
from specs.errors import StateError


def policy(folder: Path, weights: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(weights)
    (folder / "manifest.json").write_text("{}")
    return folder


def candidate(tmp: Path, weights: str, gate: str | None = None) -> Candidate:
    return Candidate(policy(tmp / f"made-{weights}-{gate}", weights), f"stage-{weights}", gate, "e1", "why")


def test_a_promotion_happens_once_for_a_gate_and_a_policy(tmp_path: Path) -> None:
    home, one = tmp_path / "home", candidate(tmp_path, "a", "gate1")
    first = registry.promote(home, "p", one)
    assert (first.version, first.result, first.previous) == (1, "promoted", None)
    assert registry.promote(home, "p", one) == first
    two = candidate(tmp_path, "b", "gate2")
    second = registry.promote(home, "p", two)
    assert (second.version, second.previous) == (2, 1)
    assert registry.promote(home, "p", one) == first  # the node of the first promotion, done again after a kill
    known = registry.load(home, "p")
    assert known.aliases == {"champion": 2, "previous": 1}
    assert len(known.promotions) == 2


def test_the_champion_again_under_another_gate_is_already_promoted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    registry.promote(home, "p", candidate(tmp_path, "a", "gate1"))
    again = registry.promote(home, "p", candidate(tmp_path, "a", "gate2"))
    assert (again.result, again.version) == ("already_promoted", 1)
    assert len(registry.load(home, "p").versions) == 1


def test_rollback_swaps_champion_and_previous(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(StateError, match="no previous champion"):
        registry.rollback(home, "p")
    registry.promote(home, "p", candidate(tmp_path, "a", "gate1"))
    registry.promote(home, "p", candidate(tmp_path, "b", "gate2"))
    assert registry.rollback(home, "p", "worse in use").version == 1
    assert registry.load(home, "p").aliases == {"champion": 1, "previous": 2}
    assert registry.rollback(home, "p").version == 2


def test_a_person_may_promote_what_a_gate_let_in_before(tmp_path: Path) -> None:
    home = tmp_path / "home"
    one = candidate(tmp_path, "a", "gate1")
    registry.promote(home, "p", one)
    registry.promote(home, "p", candidate(tmp_path, "b", "gate2"))
    folder = registry.checked_folder(home, registry.load(home, "p").versions[0])
    back = registry.promote(home, "p", Candidate(folder, "stage-a", reason="by hand"))
    assert (back.version, back.previous, back.result) == (1, 2, "promoted")


def test_damage_is_named_and_never_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    registry.promote(home, "p", candidate(tmp_path, "a", "gate1"))
    registry.promote(home, "p", candidate(tmp_path, "b", "gate2"))
    first = registry.load(home, "p").versions[0]
    (home / first.folder / "model.safetensors").unlink()
    (home / first.folder / "model.safetensors").write_text("x")
    with pytest.raises(StateError, match="v1 is damaged"):
        registry.rollback(home, "p")
    assert registry.load(home, "p").aliases["champion"] == 2
    registry.path_of(home, "p").write_text('{"program": "p"}')
    with pytest.raises(StateError, match="damaged registry"):
        registry.load(home, "p")


def test_a_challenger_waits_beside_the_champion(tmp_path: Path) -> None:
    home = tmp_path / "home"
    registry.promote(home, "p", candidate(tmp_path, "a", "gate1"))
    version = registry.challenge(home, "p", candidate(tmp_path, "b", "gate2"))
    assert registry.load(home, "p").aliases == {"champion": 1, "challenger": version.version}
    registry.promote(home, "p", candidate(tmp_path, "b", "gate3"))
    assert registry.load(home, "p").aliases == {"champion": 2, "previous": 1}


def test_a_champion_that_was_not_judged_against_is_never_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = registry.promote(home, "p", candidate(tmp_path, "a", "gate1"), expected=None)
    assert first.result == "promoted"
    two, three = candidate(tmp_path, "b", "gate2"), candidate(tmp_path, "c", "gate3")
    for expected in (None, "0" * 64):
        found = registry.promote(home, "p", two, expected=expected)
        assert (found.result, found.version, found.previous) == ("challenger", 2, None)
        assert registry.load(home, "p").aliases == {"champion": 1, "challenger": 2}
    assert (
        registry.promote(home, "p", candidate(tmp_path, "a", "gate4"), expected="0" * 64).result == "already_promoted"
    )
    assert registry.promote(home, "p", two, expected=first.digest).result == "promoted"
    assert registry.promote(home, "p", three, expected=first.digest).result == "challenger"
    again = registry.promote(home, "p", two, expected=first.digest)  # done again after a kill
    assert (again.result, again.version) == ("promoted", 2)
    assert registry.load(home, "p").aliases == {"champion": 2, "previous": 1, "challenger": 3}


def node(tmp: Path, params: dict[str, Any], inputs: dict[str, Path]) -> NodeContext:
    out = tmp / "home" / "nodes" / "key" / "out"
    out.mkdir(parents=True, exist_ok=True)
    spool = MetricSpool(tmp / "metrics.jsonl")
    return NodeContext(
        "promote.ship", "promote", params, {}, 17, inputs, out, tmp, spool, lambda: False, lambda *_: None, run="run-1"
    )


def gate(tmp: Path, answer: str, name: str = "ship", champion: str | None = None) -> Path:
    folder = tmp / f"gate-{name}-{answer}"
    folder.mkdir(exist_ok=True)
    record = {"gate": name, "answer": answer, "candidate": "rl", "text": "", "rows": [], "champion": champion}
    (folder / "gate.json").write_text(json.dumps(record))
    return folder


def test_the_bodies_promote_what_passed_and_hand_a_champion_on(tmp_path: Path) -> None:
    made = policy(tmp_path / "made" / "policy", "a").parent
    params = {"program": "p", "gate": "ship", "candidates": ["rl"]}
    failed = promote(node(tmp_path, params, {"gate": gate(tmp_path, "fail"), "policy.rl": made}))
    assert failed.metrics == {"promoted": 0.0}
    held = promote(node(tmp_path, params, {"gate": gate(tmp_path, "inconclusive"), "policy.rl": made}))
    assert "challenger" in held.notes[0]
    asked = node(tmp_path, params, {"gate": gate(tmp_path, "pass"), "policy.rl": made})
    assert promote(asked).metrics == {"promoted": 1.0, "version": 1.0}
    written = (asked.out / "promotion.json").read_bytes()
    assert promote(asked).result == "completed"  # the same node after a kill: same answer, same bytes
    assert (asked.out / "promotion.json").read_bytes() == written
    again = promote(node(tmp_path, params, {"gate": gate(tmp_path, "already_promoted"), "policy.rl": made}))
    assert again.result == "already_promoted"
    gone = promote(node(tmp_path, params, {"gate": gate(tmp_path, "superseded"), "policy.rl": made}))
    assert gone.metrics == {"promoted": 0.0}
    champion = registry.champion(tmp_path / "home", "p")
    assert champion is not None
    assert champion.execution == "run-1", "`plan --diff champion` finds its plan by it"
    given = {"version": 1, "digest": champion.digest, "folder": champion.folder}
    taken = node(tmp_path, given, {})
    registered(taken)
    assert registry.policy_digest(taken.out / "policy") == champion.digest


@dataclass
class Run:
    """The promotions of one run, each told what the one before it left."""

    tmp: Path
    before: Path | None = None
    notes: list[str] = field(default_factory=list[str])

    def promote(self, name: str, weights: str, answer: str = "pass", champion: str | None = None) -> dict[str, Any]:
        made = self.tmp / f"made-{name}"
        shutil.rmtree(made, ignore_errors=True)
        policy(made / "policy", weights)
        inputs = {"gate": gate(self.tmp, answer, name, champion), "policy.rl": made}
        inputs |= {} if self.before is None else {"before": self.before}
        done = node(self.tmp, {"program": "p", "gate": name, "candidates": ["rl"]}, inputs)
        self.notes = promote(done).notes
        self.before = self.tmp / f"left-{name}"
        shutil.copytree(done.out, self.before)
        return json.loads((done.out / "promotion.json").read_text())


def digest(tmp: Path, weights: str) -> str:
    return registry.policy_digest(policy(tmp / f"weights-{weights}", weights))


def test_a_run_overwrites_what_itself_promoted_and_nothing_that_a_person_did(tmp_path: Path) -> None:
    home, run = tmp_path / "home", Run(tmp_path)
    a, b = digest(tmp_path, "a"), digest(tmp_path, "b")
    assert run.promote("ship", "a")["result"] == "promoted"
    assert run.promote("other", "b")["result"] == "promoted", "both were judged with no champion, in one run"
    assert run.promote("failed", "x", "fail") == {
        "answer": "fail", "candidate": "rl", "result": "nothing", "champion": b,
    }  # fmt: skip
    assert run.promote("ship@1", "c", champion=a)["previous"] == 2
    registry.rollback(home, "p")
    found = run.promote("ship@2", "d", champion=digest(tmp_path, "c"))
    assert (found["result"], found["champion"]) == ("challenger", None)
    assert "the champion was changed meanwhile" in run.notes[0]
    assert "--refresh" in run.notes[0]
    assert "tutelage promote p v4 --reason TEXT" in run.notes[0]
    assert registry.load(home, "p").aliases == {"champion": 2, "previous": 3, "challenger": 4}
    assert run.promote("ship@3", "e", champion=digest(tmp_path / "more", "d"))["result"] == "challenger"
    assert registry.load(home, "p").aliases["champion"] == 2


def test_a_champion_that_gave_way_as_its_gate_looked_is_not_put_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    registry.promote(home, "p", candidate(tmp_path, "a", "gate1"))
    registry.promote(home, "p", candidate(tmp_path, "b"))
    found = Run(tmp_path).promote("ship", "a", "already_promoted", digest(tmp_path, "a"))
    assert (found["result"], found["champion"]) == ("nothing", None)
    assert registry.load(home, "p").aliases == {"champion": 2, "previous": 1}


def test_a_gate_record_that_cannot_be_read_promotes_nothing(tmp_path: Path) -> None:
    folder = gate(tmp_path, "pass")
    (folder / "gate.json").write_text("{")
    with pytest.raises(StateError, match="no usable gate record"):
        promote(node(tmp_path, {"program": "p"}, {"gate": folder}))
    assert registry.champion(tmp_path / "home", "p") is None
