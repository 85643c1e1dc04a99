import io
import json
import logging
import re
import shutil

import pytest
import torch
from rich.console import Console

from flows.context import MetricSpool, NodeContext
from flows.summary import view
from flows.work import choosing, data, inputs, policy_gradient, supervised
from specs.agents import ToolLoop
from specs.algorithms import PolicyGradientAlgorithm
from specs.data import Demonstrations, Problems
from specs.environments import OrderDesk
from specs.errors import DataError, Interrupted, StateError, TrainingError
from specs.group_relative import DAPO, Resample
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.policy import BPETokenizer, LoRA, Policy, ScratchPolicy
from specs.policy_gradient import Correction
from specs.records import demonstration_from, problem_from
from specs.reward import Reward
from specs.run import Run
from specs.stages import Needs, Preflight
from specs.supervised import RFT, SFT, SupervisedBatch
from specs.verifiers import EnvironmentState
from tasks.episodes.environments import environment_for
from tasks.episodes.shards import read_shards
from tasks.loops.order import ProblemOrder
from tasks.policy.initial import from_scratch
from tasks.policy.store import load_policy, save_policy
from tasks.tokens.text import compact_json, fragments

DESK = OrderDesk(kind="order_desk", types=["stock"], max_turns=4)
SCRATCH = ScratchPolicy(
    kind="scratch",
    hidden_size=48,
    layers=1,
    heads=4,
    kv_heads=2,
    intermediate_size=64,
    max_length=128,
    tokenizer=BPETokenizer(kind="bpe", vocab_size=420),
)
POLICY = Policy(init=SCRATCH, precision="fp32")
MUON = Optimizer(kind="muon", learning_rate=1e-2, schedule="linear")
SHARED = {"policy": POLICY, "agent": ToolLoop(max_new_tokens=24), "environments": {"desk": DESK}}
# the answer is left aside: a quick model learns to end a job before it learns to copy names
JUDGED = SHARED | {
    "verifiers": {"state": EnvironmentState(kind="environment_state", answer=False)},
    "reward": Reward(outcome={"state": 1.0}),
}
ROLL = {"data": {"train": None}}


def dump(value):
    if isinstance(value, dict):
        return {k: dump(v) for k, v in value.items()}
    return value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value


def node(folder, name, inputs, params, *, stop=lambda: False, **execution):
    out = folder / name / f"out{len(list(folder.glob(f'{name}/out*')))}"
    (folder / name / "ckpt").mkdir(parents=True, exist_ok=True)
    out.mkdir()
    return NodeContext(
        id=name,
        kind="test",
        params={k: dump(v) for k, v in params.items()},
        execution=Run(**execution).model_dump(mode="json"),
        seed=11,
        inputs=inputs,
        out=out,
        checkpoints=folder / name / "ckpt",
        metrics=MetricSpool(folder / name / "metrics.jsonl"),
        stop=stop,
        progress=lambda what, share, figures: None,
    )


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return a folder with demonstrations, problems, an untouched policy, and one after sft."""
    folder = tmp_path_factory.mktemp("stages")
    source = Demonstrations(kind="demonstrations", environment="desk", size=160)
    made = node(folder, "demos", {}, {"source": source, "environment": DESK, "name": "demos"})
    data.demonstrations(made)
    problems = node(
        folder,
        "train",
        {},
        {"source": Problems(kind="problems", environment="desk", size=24), "environment": DESK, "name": "train"},
    )
    data.problems(problems)
    demos = [demonstration_from(json.loads(x)) for x in (made.out / "records.jsonl").read_text().splitlines()]
    texts = [d.problem.text for d in demos]
    texts += [compact_json(o.data) for d in demos for _, o in d.turns]
    tools = environment_for("desk", DESK).tools()
    pieces = fragments(tools, "flat", [o.data for d in demos for _, o in d.turns])
    untouched = folder / "init"
    save_policy(from_scratch(SCRATCH, POLICY.template, texts, pieces, 0), untouched / "policy")
    taught = sft_node(folder, "teach", made.out, untouched)
    supervised.sft(taught)
    return folder, {"data.demos": made.out, "data.train": problems.out, "init": untouched, "taught": taught.out}


def sft_node(folder, name, demos, policy, **more):
    spec = SFT(type="sft", epochs=6, batch=SupervisedBatch(tokens=1024), optimizer=MUON)
    params = SHARED | {"algorithm": spec, "data": {"demos": None}}
    return node(folder, name, {"policy": policy, "data.demos": demos}, params, **more)


def weights(folder):
    return torch.cat([p.flatten() for p in load_policy(folder / "policy").model.parameters()])


def test_sft_reports_what_trains_and_resumes_bit_for_bit(base, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    _, at = base
    rows = read(at["taught"] / "rows.json")
    assert rows["sources"]["demos"]["rows"] == 160
    assert 0.1 < rows["sources"]["demos"]["trained_share"] < 0.7
    assert rows["fit"]["last_loss"] < 0.5 * rows["fit"]["first_loss"]
    calls = iter(range(999))
    stopped = sft_node(tmp_path, "teach", at["data.demos"], at["init"], stop=lambda: next(calls) > 4)
    with pytest.raises(Interrupted):
        supervised.sft(stopped)
    again = sft_node(tmp_path, "teach", at["data.demos"], at["init"])
    supervised.sft(again)
    assert "went on from step 5" in caplog.messages
    assert torch.equal(weights(again.out), weights(at["taught"]))
    assert read(again.out / "rows.json") == rows
    steps = [json.loads(x)["step"] for x in (tmp_path / "teach" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, rows["fit"]["steps"] + 1))


def test_the_share_that_trains_of_every_source_is_printed(base, tmp_path):
    _, at = base
    sets = ("anchor", "repaired", "successes")
    made = sft_node(tmp_path, "teach", at["data.demos"], at["init"])
    made.params["data"] = dict.fromkeys(sets)
    made.inputs.update({f"data.{name}": at["data.demos"] for name in sets})
    found = supervised.sft(made).notes
    assert list(read(made.out / "rows.json")["sources"]) == list(sets)
    row = {"node": "teach", "status": "completed", "seconds": 1.0, "reason": "", "notes": found, "kind": "train.sft"}
    data = dict.fromkeys(("champion", "report", "resume")) | {"nodes": [row], "gates": [], "held": [], "state": "ended"}
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(view(data | {"program": "p", "exit_code": 0}, []))
    (line,) = [x for x in console.export_text().splitlines() if x.startswith("teach")]
    for name, counts in read(made.out / "rows.json")["sources"].items():
        assert (
            f"{name} {100 * counts['trained_share']:.0f} % ({counts['trained']} of {counts['tokens']}, 160 rows)"
            in line
        )


def test_what_was_dropped_to_keep_sets_apart_does_not_train(base, tmp_path):
    _, at = base
    first = json.loads((at["data.demos"] / "records.jsonl").read_text().splitlines()[0])
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "apart.json").write_text(json.dumps({"hits": [], "dropped": {"demos": [first["problem"]["id"]]}}))
    made = sft_node(tmp_path, "teach", at["data.demos"], at["init"])
    made.inputs["apart"] = apart
    supervised.sft(made)
    assert read(made.out / "rows.json")["sources"]["demos"]["rows"] == 159


def test_sft_refuses_problems_without_solutions(base, tmp_path):
    _, at = base
    with pytest.raises(DataError, match="sft needs demonstrations"):
        supervised.sft(sft_node(tmp_path, "teach", at["data.train"], at["init"]))


def test_rft_collects_selects_and_trains(base, tmp_path):
    _, at = base
    spec = RFT(type="rft", samples=4, rounds=2, problems=20, min_gain=0.9, optimizer=MUON)
    params = JUDGED | ROLL | {"algorithm": spec, "round": 1}
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    collected = node(tmp_path, "collect1", inputs, params)
    outcome = supervised.collect(collected)
    chosen = read(collected.out / "collect.json")
    drawn = {t.id: t for t in read_shards(collected.out / "trajectories")}
    assert (len(drawn), chosen["continue"]) == (80, True)
    assert all(drawn[i].success and drawn[i].status == "finished" for i in chosen["selected"])
    assert len(chosen["selected"]) + sum(chosen["dropped"].values()) == 80
    assert outcome.cost["rollouts"] == 80
    fit = node(tmp_path, "fit1", {"policy": at["taught"], "collect": collected.out}, {**params, "data": None})
    supervised.rft(fit)
    assert read(fit.out / "rows.json")["sources"]["selected"]["rows"] == len(chosen["selected"])
    assert not torch.equal(weights(fit.out), weights(at["taught"]))

    second = node(tmp_path, "collect2", inputs | {"policy": fit.out, "previous": collected.out}, params | {"round": 2})
    notes = supervised.collect(second).notes
    assert read(second.out / "collect.json")["continue"] is False
    (told,) = [n for n in notes if n.endswith("min_gain is 0.9: later rounds are left out")]
    assert re.match(
        r"share of problems with a success: [+-]0\.\d{3} \[[+-]0\.\d{3}, [+-]0\.\d{3}\] on the same 20 ", told
    )
    again = list(read_shards(second.out / "trajectories"))
    assert {t.problem_id for t in again} == {t.problem_id for t in drawn.values()}
    assert not {t.seed for t in again} & {t.seed for t in drawn.values()}


def test_a_loss_of_a_few_problems_is_no_reason_to_end_the_rounds(base, tmp_path):
    _, at = base
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    params = JUDGED | ROLL | {"algorithm": RFT(type="rft", samples=1, rounds=3), "round": 2}
    now = node(tmp_path, "collect2", inputs, params)
    supervised.collect(now)
    rates = read(now.out / "collect.json")["pass_rates"]

    def after(before):
        (tmp_path / "collect.json").write_text(json.dumps({"pass_rates": before}))
        again = node(tmp_path, "collect2", inputs | {"previous": tmp_path}, params)
        (note,) = [n for n in supervised.collect(again).notes if n.startswith("share of problems with a success")]
        return read(again.out / "collect.json")["continue"], note

    unsolved = sorted(p for p, rate in rates.items() if rate == 0)
    assert len(unsolved) > 2
    goes_on, note = after(rates | {unsolved[0]: 1.0})
    assert goes_on
    assert "a success: -0.042 [-0." in note
    assert note.endswith("min_gain is 0")


def test_rft_without_a_success_names_the_ways_out(base, tmp_path):
    _, at = base
    inputs = {"policy": at["init"], "data.train": at["data.train"]}
    params = JUDGED | ROLL | {"algorithm": RFT(type="rft", samples=1, max_truncated=1.0), "round": 1}
    with pytest.raises(TrainingError, match="demonstrations first"):
        supervised.collect(node(tmp_path, "collect1", inputs, params))


GRPO_SPEC = GRPO(type="grpo", group_size=4, problems_per_step=6, steps=3, optimizer=Optimizer(learning_rate=1e-3))


def grpo_node(folder, at, decision, spec: PolicyGradientAlgorithm = GRPO_SPEC, **more):
    inputs = {"policy": at["taught"], "data.train": at["data.train"], "decision": decision}
    return node(folder, "rl", inputs, JUDGED | ROLL | {"algorithm": spec}, checkpoint_seconds=1e-9, **more)


def asked(folder, at, policy, *, last=True, **needs):
    params = (
        JUDGED
        | ROLL
        | {"algorithm": GRPO_SPEC, "needs": Needs(**needs), "preflight": Preflight(problems=10, samples=4)}
    )
    probe = node(folder, "preflight1", {"policy": at[policy], "data.train": at["data.train"]}, params)
    assert any(n.startswith("the first success of a problem takes") for n in policy_gradient.preflight(probe).notes)
    choice = node(folder, "choose1", {"preflight": probe.out}, {"needs": Needs(**needs), "last": last, "stage": "rl"})
    return probe, choice


def test_preflight_decides_whether_a_stage_runs(base, tmp_path):
    _, at = base
    probe, choice = asked(tmp_path / "good", at, "taught")
    choosing.choose(choice)
    assert read(choice.out / "decision.json")["go"] is True
    figures = read(probe.out / "preflight.json")
    assert figures["rollouts"] == 40
    best, worst = (list(read_shards(probe.out / "review" / part)) for part in ("best", "worst"))
    assert min(t.reward or 0 for t in best) >= max(t.reward or 0 for t in worst)

    _, choice = asked(tmp_path / "bad", at, "init", last=False)
    choosing.choose(choice)
    decision = read(choice.out / "decision.json")
    assert (decision["go"], "success is 0.000, needs 0.01" in decision["reason"]) == (False, True)
    choice.params["last"] = True
    with pytest.raises(TrainingError, match=r"stage rl.*success is 0.000.*else_first: rft"):
        choosing.choose(choice)


def test_another_policy_gradient_runs_as_a_node_with_every_knob(base, tmp_path):
    _, at = base
    go = tmp_path / "go"
    go.mkdir()
    (go / "decision.json").write_text('{"go": true, "reason": ""}')
    spec = DAPO(
        type="dapo",
        group_size=4,
        problems_per_step=4,
        steps=2,
        kl_coef=0.01,
        entropy_coef=0.001,
        dual_clip=3.0,
        correction=Correction(reject_below=1e-4),
        resample=Resample(max_rounds=2),
        optimizer=Optimizer(learning_rate=1e-3),
    )
    made = grpo_node(tmp_path, at, go, spec)
    outcome = policy_gradient.train(made)
    assert outcome.cost["rollouts"] >= 32
    first = read(made.out / "curve.json")["steps"][0]
    assert {"mismatch_k3", "correction_ess", "reference_kl_k3", "entropy", "clip_fraction"} <= set(first)
    assert first["updated"] == 1.0


def test_grpo_trains_and_resumes_bit_for_bit(base, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    _, at = base
    go = tmp_path / "go"
    go.mkdir()
    (go / "decision.json").write_text('{"go": true, "reason": ""}')
    whole = grpo_node(tmp_path / "whole", at, go)
    outcome = policy_gradient.train(whole)
    assert outcome.cost["rollouts"] == 72
    assert not torch.equal(weights(whole.out), weights(at["taught"]))
    curve = read(whole.out / "curve.json")["steps"]
    assert [line["step"] for line in curve] == [1, 2, 3]
    assert max(line.get("logprob_gap", 0) for line in curve) < 1e-3
    versions = {v for t in read_shards(whole.out / "trajectories") for v, _ in t.policy_versions}
    assert len(versions) == 3

    spool = tmp_path / "parts" / "rl" / "metrics.jsonl"
    stopped = grpo_node(tmp_path / "parts", at, go, stop=lambda: spool.exists() and "\n" in spool.read_text())
    with pytest.raises(Interrupted):
        policy_gradient.train(stopped)
    again = grpo_node(tmp_path / "parts", at, go)
    policy_gradient.train(again)
    assert "went on from step 1" in caplog.messages
    for name in ("policy/model.safetensors", "curve.json", "trajectories/part-00000.parquet"):
        assert (again.out / name).read_bytes() == (whole.out / name).read_bytes(), name


def test_a_last_step_without_a_token_of_the_policy_still_hands_it_on_checked(base, tmp_path):
    """The prompt of the second problem fills the length: nothing of the last step can be compared."""
    _, at = base
    lines = (at["data.train"] / "records.jsonl").read_text().splitlines()[:2]
    (drawn,) = ProblemOrder({"train": [problem_from(json.loads(x)) for x in lines]}, 11).draw(2)[1:]
    problems, go = tmp_path / "problems", tmp_path / "go"
    for folder in (problems, go):
        folder.mkdir()
    (go / "decision.json").write_text('{"go": true, "reason": ""}')
    made = [json.loads(x) for x in lines]
    for record in made:
        record["text"] += " and" * 400 * (record["id"] == drawn.id)
    (problems / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made))
    one = {"problems_per_step": 1, "group_size": 8, "steps": 2, "max_truncated": 1.0, "max_flat_steps": None}
    spec = GRPO_SPEC.model_copy(update=one)
    policy = POLICY.model_copy(update={"adapter": LoRA(kind="lora", rank=2)})

    def run(stop=lambda: False):
        node = grpo_node(tmp_path, at | {"data.train": problems}, go, spec, stop=stop)
        node.params["policy"] = dump(policy)
        policy_gradient.train(node)
        return node

    spool = tmp_path / "rl" / "metrics.jsonl"
    with pytest.raises(Interrupted):
        run(lambda: spool.exists() and "\n" in spool.read_text())
    done = run()
    first, last = read(done.out / "curve.json")["steps"]
    assert first["truncated"] < last["truncated"] == 1.0
    assert (done.out / "adapter").is_dir()
    (problems / "records.jsonl").write_text(json.dumps(next(r for r in made if r["id"] == drawn.id)) + "\n")
    shutil.rmtree(tmp_path / "rl")
    with pytest.raises(StateError, match="rl: no trajectory of the stage has a token of the policy"):
        run()


@pytest.mark.parametrize(
    ("precisions", "sampler", "same"),
    [
        (("fp32", "fp32"), {"kind": "local"}, True),
        (("fp32", "bf16"), {"kind": "local"}, False),
        (("bf16", "bf16"), {"kind": "local"}, False),
        (("fp32", "fp32"), {"kind": "vllm"}, False),
    ],
)
def test_a_sampler_is_exact_in_this_process_with_full_precision(tmp_path, precisions, sampler, same):
    policy = Policy(init=SCRATCH, precision=precisions[0], sampler_precision=precisions[1])
    assert inputs.exact(node(tmp_path, "rl", {}, {"policy": policy}, sampler=sampler)) is same
