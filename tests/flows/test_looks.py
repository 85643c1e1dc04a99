"""Looks at evaluation sets: counted by what the sets hold, kept apart from nodes, never forgotten and never overspent."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import looks
from flows.cli import main
from flows.looks import Question
from flows.state import State
from flows.work import judging
from specs.errors import StateError
from tasks.statistics.looks import Asked
from tests.flows import nightly
from tests.flows.test_judging import fake_evaluation, gate_params, node

HIDDEN = Question("ship", ("other",), {"hidden": "h" * 64})


def spend(home: Path, candidate: str, alpha: float = 0.02, question: Question = HIDDEN) -> None:
    looks.keep(home, "p", question, candidate, alpha=alpha, look=1)


def test_a_look_is_one_line_however_often_its_gate_decides(tmp_path: Path) -> None:
    for _ in range(2):
        spend(tmp_path, "a")
    spend(tmp_path, "b")
    spend(tmp_path, "a", 0.03)  # fewer looks are declared by now: the same one spends more
    assert looks.asked_before(tmp_path, "p", HIDDEN) == [Asked("a", 0.03), Asked("b", 0.02)]
    assert len(looks.read(tmp_path, "p")) == 3
    assert looks.read(tmp_path, "other") == []


def test_looks_belong_to_problems_and_to_a_gate(tmp_path: Path) -> None:
    spend(tmp_path, "a")

    def seen(gate: str, others: tuple[str, ...], **sets: str) -> list[str]:
        return [a.candidate for a in looks.asked_before(tmp_path, "p", Question(gate, others, sets))]

    assert seen("ship", (), renamed="h" * 64, more="m" * 64) == ["a"]
    assert seen("ship", (), hidden="n" * 64) == [], "new problems under the same name"
    assert seen("other", ("ship",), hidden="h" * 64) == [], "a claim of its own"
    assert seen("shipping", (), hidden="h" * 64) == ["a"], "a gate that is called otherwise now"


def test_a_torn_line_is_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    spend(tmp_path, "a")
    path = looks.path_of(tmp_path, "p")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    spend(tmp_path, "b")
    assert [line["candidate"] for line in looks.read(tmp_path, "p")] == ["a", "b"]
    for damage in (b"{\n", b"[]\n", b'{"gate": "ship"}\n', whole.replace(b'"' + b"h" * 64 + b'"', b"3")):
        path.write_bytes(damage + whole)
        with pytest.raises(StateError, match=r"looks\.jsonl:1: .*restore it from a copy, or move it away"):
            looks.read(tmp_path, "p")


def decide(tmp_path: Path, digest: str, problems: str = "x", **changes: Any) -> dict[str, Any]:
    """Let a gate's body decide about a policy that solves most of `problems`."""
    made = tmp_path / f"made{len(list(tmp_path.iterdir()))}"
    (made / "data").mkdir(parents=True)
    (made / "data" / "records.jsonl").write_text(problems)
    inputs = {
        "candidate.rl.hidden": fake_evaluation(made / "eval", set(range(190)), digest),
        "data.hidden": made / "data",
    }
    context = node(
        tmp_path, gate_params({"set": "hidden", "at_least": 0.85}, **changes), inputs, state=tmp_path / "home"
    )
    judging.gate(context)
    return json.loads((context.out / "gate.json").read_text())


def test_a_gate_counts_and_keeps_its_looks(tmp_path: Path) -> None:
    first = decide(tmp_path, "a")
    assert (first["answer"], first["look"], first["alpha_of_look"]) == ("pass", 1, 0.05)
    assert decide(tmp_path, "a") == first, "the same policy is the same look, and the same record"
    second = decide(tmp_path, "b", gate={"looks": 3})
    assert (second["answer"], second["look"], second["alpha_before"]) == ("inconclusive", 2, 0.05)
    assert "only new problems help" in second["sentence"]
    assert decide(tmp_path, "b", name="ship@1")["look"] == 2, "the gate of a round is the same gate"
    assert decide(tmp_path, "b", name="apart", others=["ship"])["answer"] == "pass"
    fresh = decide(tmp_path, "b", "y")
    assert (fresh["answer"], fresh["look"]) == ("pass", 1)
    assert decide(tmp_path, "a", champion={"digest": "a" * 64})["answer"] == "already_promoted"
    assert [(line["gate"], line["candidate"][0]) for line in looks.read(tmp_path / "home", "desk")] == [
        ("ship", "a"), ("apart", "b"), ("ship", "b"),
    ]  # fmt: skip


def test_an_empty_set_is_never_looked_at(tmp_path: Path) -> None:
    assert decide(tmp_path, "a", "")["look"] == 1
    assert decide(tmp_path, "b", "")["look"] == 1


# --- whole runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose gate has decided once, with the one look that it declares."""
    folder = tmp_path_factory.mktemp("ran") / "project"
    file = nightly.project(folder)
    nightly.problems(folder, nightly.MANY, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUTELAGE_HOME", str(folder / ".tutelage"))
        assert main(["run", str(file), "--no-services", "--json", "--set", "gates.ship.looks=1"]) == 0
    return folder


@pytest.fixture
def file(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "project" / ".tutelage"))
    return nightly.copied(ran, tmp_path / "project")


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_no_seed_no_lost_node_and_no_later_declaration_gives_a_look_back(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = State(file.parent / ".tutelage")
    last = state.last("nightly")
    assert last is not None
    assert main(["plan", str(file), "--set", "gates.ship.looks=1", "--json"]) == 0
    assert told(capsys)["gates"][0]["decidable"], "what is decided is not asked again"
    shutil.rmtree(state.node(last.nodes["gate.ship"]["run_key"]))
    for sets in (["gates.ship.looks=1"], ["gates.ship.looks=9"]):
        other = [word for s in ["seed=18", *sets] for word in ("--set", s)]
        assert main(["run", str(file), *other, "--no-services", "--json"]) == 7
        gate = told(capsys)["gates"][0]
        assert (gate["look"], gate["alpha_of_look"], gate["answer"]) == (2, 0.0, "inconclusive")
        assert "only new problems help" in gate["sentence"]
        assert main(["plan", str(file), *other, "--json"]) == 0
        assert "1 looks have spent alpha 0.05; only new problems help" in told(capsys)["gates"][0]["text"]
    nightly.problems(file.parent, nightly.MANY, seed=2)
    assert main(["run", str(file), "--set", "seed=18", "--no-services", "--json"]) == 0
    assert told(capsys)["gates"][0]["look"] == 1


def test_a_damaged_ledger_is_told_before_anything_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looks.path_of(file.parent / ".tutelage", "nightly").write_text("{\n")
    assert main(["run", str(file), "--no-services", "--set", "seed=18"]) == 5
    assert "looks.jsonl:1: found a damaged record" in capsys.readouterr().err
