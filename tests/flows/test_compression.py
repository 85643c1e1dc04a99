"""Pruning and rounding from a program to a plan, and through their node."""

import json

import pytest

from flows.describe import effective_loss
from flows.smoke import smoke
from flows.work import compression
from specs.compression import Prune, Quantize
from specs.errors import ProgramError
from tasks.policy.store import load_policy
from tests.flows.programs import SMALL, changed, nodes, plan, program
from tests.flows.test_stages import SHARED, base, node

__all__ = ["base"]
SMALLER = {"id": "smaller", "algorithm": {"type": "prune", "layers": 1, "neurons": 0.25}, "data": ["demos"]}
BITS = {"id": "bits", "algorithm": {"type": "quantize"}, "data": ["demos"]}


def test_a_program_prunes_rounds_and_goes_on():
    data = changed(SMALL, "stages", [SMALL["stages"][0], SMALLER, BITS, SMALL["stages"][1]])
    made = nodes(plan(data))
    assert made["smaller"].kind == made["bits"].kind == "compress"
    assert made["bits"].inputs["policy"] == "smaller"
    assert made["harvest.collect1"].inputs["policy"] == "bits"
    assert made["smaller"].estimate.memory_gb > 0
    small = smoke(program(data)).stages[1].algorithm
    assert isinstance(small, Prune)
    assert small.calibration == 8


def test_what_it_does_is_told():
    assert "1 layers (those that turn" in effective_loss(Prune(type="prune", layers=1))[1]
    assert "30% of the heads" in effective_loss(Prune(type="prune", heads=0.3))[1]
    assert "3 bits, a scale for a row" in effective_loss(Quantize(type="quantize", bits=3, group=None))[1]


def test_it_reads_demonstrations(tmp_path):
    from specs.loader import load_program

    data = changed(SMALL, "stages", [SMALL["stages"][0], {**SMALLER, "data": ["train"]}])
    (tmp_path / "p.yaml").write_text(json.dumps(data))
    with pytest.raises(ProgramError, match="prune trains on demonstrations"):
        load_program(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    "spec", [Prune(type="prune", neurons=0.5, calibration=20), Quantize(type="quantize", bits=4, calibration=999)]
)
def test_the_node_hands_a_smaller_policy_on(base, tmp_path, spec):
    _, at = base
    made = node(
        tmp_path,
        "smaller",
        {"policy": at["taught"], "data.demos": at["data.demos"]},
        SHARED | {"algorithm": spec, "data": {"demos": None}},
    )
    done = compression.compress(made)
    told = json.loads((made.out / "compression.json").read_text())
    policy = load_policy(made.out / "policy")
    assert sum(p.numel() for p in policy.model.parameters()) == told["parameters"]
    assert told["rows"] == (20 if spec.type == "prune" else 160)
    assert done.metrics["loss"] == pytest.approx(told["loss"])
    if spec.type == "prune":
        assert policy.config.intermediate_size == 32
        assert told["parameters"] < told["parameters_before"]
    else:
        assert any("there are only 160" in n for n in done.notes)
        assert told["loss"] < told["loss_before"] + 1.0


def test_demonstrations_can_stand_behind_their_solution(base, tmp_path):
    from flows.work.supervised import demonstration_rows

    _, at = base
    made = node(
        tmp_path, "teach", {"policy": at["init"], "data.demos": at["data.demos"]}, SHARED | {"data": {"demos": None}}
    )
    policy = load_policy(at["init"] / "policy")
    plain, _ = demonstration_rows(made, "demos", policy)
    shown, _ = demonstration_rows(made, "demos", policy, 0.5)
    longer = [(a, b) for a, b in zip(plain, shown, strict=True) if len(b.ids) > len(a.ids)]
    assert 0.3 < len(longer) / len(plain) < 0.7
    for one, other in longer:
        assert other.ids[-len(one.ids) :] == one.ids
        assert other.trained == one.trained
        assert not any(other.mask[: len(other.ids) - len(one.ids)])
        assert other.length <= policy.config.max_length
