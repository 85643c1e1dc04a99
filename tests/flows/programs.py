"""Small programs for tests of the planner, as data."""

import json
import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.compile import compile
from flows.nodes import Node, Plan
from flows.resolution import Resolution
from flows.resolve import resolve
from specs.program import Program

Json = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden"
MACHINE = {"cores": 2.0, "memory_gb": 16.0}

SMALL: Json = {
    "program": "small",
    "policy": {"init": {"kind": "scratch", "tokenizer": {"kind": "bpe"}}},
    "environments": {"desk": {"kind": "order_desk"}, "unused": {"kind": "order_desk", "max_turns": 3}},
    "data": {
        "demos": {"kind": "demonstrations", "environment": "desk", "size": 200},
        "train": {"kind": "problems", "environment": "desk", "size": 100},
        "golden": {"kind": "problems", "environment": "desk", "split": "golden", "size": 450, "role": "golden"},
        "hidden": {"kind": "problems", "environment": "desk", "split": "hidden", "size": 800, "role": "hidden"},
    },
    "verifiers": {"state": {"kind": "environment_state"}},
    "stages": [
        {"id": "teach", "algorithm": {"type": "sft"}, "data": ["demos"]},
        {"id": "harvest", "algorithm": {"type": "rft", "rounds": 2, "problems": 50}, "data": ["train"]},
        {
            "id": "rl",
            "algorithm": {"type": "grpo", "steps": 5},
            "data": ["train"],
            "else_first": {"type": "rft", "rounds": 2},
            "tries": 2,
        },
    ],
    "evaluation": {"sets": ["golden"], "at_the_end": ["golden", "hidden"]},
    "gates": {
        "ship": {
            "looks": 3,
            "require": [
                {"metric": "success", "set": "hidden", "at_least": 0.85},
                {"metric": "success", "set": "golden", "no_worse_by": 0.05},
            ],
        }
    },
}


def changed(data: Json, path: str, value: Any) -> Json:
    """Return a copy with one dotted path set; numbers index lists."""
    copy = deepcopy(data)
    at: Any = copy
    *parents, last = path.split(".")
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[int(last) if isinstance(at, list) else last] = value
    return copy


def program(data: Json = SMALL) -> Program:
    return Program.model_validate(data)


def resolution(data: Json = SMALL, **fields: Any) -> Resolution:
    return replace(resolve(program(data), environ={}), salt="0" * 16, machine=MACHINE, **fields)


def plan(data: Json = SMALL, **fields: Any) -> Plan:
    return compile(program(data), resolution(data, **fields))


def nodes(of: Plan) -> dict[str, Node]:
    return {n.id: n for n in of}


def moved(before: Plan, after: Plan) -> set[str]:
    """Return the nodes whose key is another one, or that are new."""
    old = nodes(before)
    return {n.id for n in after if n.id not in old or old[n.id].plan_key != n.plan_key}


def closure(of: Plan, *roots: str) -> set[str]:
    """Return the roots and everything that depends on them."""
    return {reached for root in roots for reached in of.downstream(root)}


def as_kept(made: Plan, name: str) -> None:
    """Compare a plan's nodes, inputs, conditions and keys with those that were looked at and kept."""
    told = [
        {
            "id": n.id,
            "kind": n.kind,
            "inputs": n.inputs,
            "when": n.when,
            "passthrough": n.passthrough,
            "key": n.plan_key[:16],
        }
        for n in made
    ]
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("\n".join(["[", ",\n".join(json.dumps(t) for t in told), "]", ""]), encoding="utf-8")
    assert golden.exists(), f"{golden} is missing: look at the plan, then run this test with UPDATE_GOLDEN=1"
    assert told == json.loads(golden.read_text()), "the plan changed: if it should, run this test with UPDATE_GOLDEN=1"
