"""`policy.init`: from demonstrations, from a model folder; deterministic; what cannot be learnt is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.context import MetricSpool, NodeContext
from flows.durable import digest_tree
from flows.work import policy as body
from specs.agents import ToolLoop
from specs.environments import OrderDesk
from specs.errors import DataError, ProgramError
from specs.policy import BPETokenizer, Policy, PretrainedPolicy, ScratchPolicy
from specs.records import to_dict
from tasks.episodes.environments import environment_for
from tasks.policy.store import load_policy

DESK = OrderDesk(kind="order_desk")
SCRATCH = ScratchPolicy(
    kind="scratch", hidden_size=16, layers=1, heads=2, kv_heads=2, intermediate_size=16, max_length=96,
    tokenizer=BPETokenizer(kind="bpe", vocab_size=600),
)  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    desk = environment_for("desk", DESK)
    made = [desk.demonstrate(p, 1, 0.3) for p in desk.problems("train", 120, 1)]
    write(folder, [to_dict(d) for d in made])
    return folder


def write(folder: Path, records: list[dict[str, Any]]) -> None:
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def node(folder: Path, spec: Policy, inputs: dict[str, Path], **more: Any) -> NodeContext:
    (folder / "out").mkdir(parents=True)
    params = {
        "policy": spec.model_dump(mode="json", by_alias=True),
        "environments": {"desk": DESK.model_dump(mode="json")},
        "agent": ToolLoop().model_dump(mode="json"),
        **more,
    }
    return NodeContext(
        id="policy.init", kind="policy.init", params=params, execution={}, seed=5, inputs=inputs, out=folder / "out",
        checkpoints=folder / "ckpt", metrics=MetricSpool(folder / "metrics.jsonl"), stop=lambda: False,
        progress=lambda what, share, figures: None,
    )  # fmt: skip


def test_from_demonstrations_twice_the_same(texts, tmp_path):
    nodes = [node(tmp_path / n, Policy(init=SCRATCH), {"texts": texts}) for n in "ab"]
    outcomes = [body.init(n) for n in nodes]
    assert digest_tree(nodes[0].out) == digest_tree(nodes[1].out)
    metrics = outcomes[0].metrics
    policy = load_policy(nodes[0].out / "policy")
    assert metrics["vocabulary"] == policy.tokenizer.size > 600
    assert metrics["parameters"] == sum(p.numel() for p in policy.model.parameters())
    assert 30 < (metrics["tokens_per_demonstration"] or 0) < 80
    skeleton = '{"tool":"check_stock","product":"'
    assert len(policy.tokenizer.encode(skeleton)) == 1


def test_demonstrations_that_do_not_fit_are_counted(texts, tmp_path):
    short = SCRATCH.model_copy(update={"max_length": 40})
    outcome = body.init(node(tmp_path / "a", Policy(init=short), {"texts": texts}))
    assert any("are longer than policy.init.max_length 40" in n for n in outcome.notes)


def test_a_demonstrated_call_that_no_policy_could_make_is_refused(texts, tmp_path):
    record = json.loads((texts / "records.jsonl").read_text().splitlines()[0])
    record["turns"][0][0]["arguments"]["zzz"] = 1
    bad = tmp_path / "bad"
    bad.mkdir()
    write(bad, [record])
    with pytest.raises(DataError, match="is unknown_argument"):
        body.init(node(tmp_path / "a", Policy(init=SCRATCH), {"texts": bad}))
    (bad / "records.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"records\.jsonl:1"):
        body.init(node(tmp_path / "b", Policy(init=SCRATCH), {"texts": bad}))


def test_from_a_folder_with_the_digest_that_was_resolved(texts, tmp_path):
    first = node(tmp_path / "a", Policy(init=SCRATCH), {"texts": texts})
    body.init(first)
    spec = Policy(init=PretrainedPolicy(kind="pretrained", model="somewhere", max_length=64))
    path = str(first.out / "policy")
    with pytest.raises(ProgramError, match="revision"):
        body.init(node(tmp_path / "b", spec, {}, path=path, digest="0" * 64))
    second = node(tmp_path / "c", spec, {}, path=path)
    outcome = body.init(second)
    assert load_policy(second.out / "policy").config.max_length == 64
    assert "has revision" in outcome.notes[0]
    digest = outcome.notes[0].split()[-1]
    assert body.init(node(tmp_path / "d", spec, {}, path=path, digest=digest)).notes == outcome.notes
