"""The table of node kinds; and that a kind whose code changed says so."""

import ast
import hashlib
import json
import os
from functools import cache
from pathlib import Path

import pytest

from flows.estimates import Shape, train_rate
from flows.nodes import NODE_KINDS, content_key, node_seed, plan_from
from specs.errors import ProgramError
from tests.flows.programs import SMALL, changed, nodes, plan

VERSIONS = Path(__file__).parents[1] / "contracts" / "node_versions.json"


ROOT = Path(__file__).parents[2]


def _source(module: str) -> Path | None:
    for path in (ROOT / Path(*module.split(".")).with_suffix(".py"), ROOT / Path(*module.split(".")) / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _read(module: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the digest of a module's code, as parsed and without docstrings, and what it imports."""
    path = _source(module)
    if path is None:
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    ours = tuple(dict.fromkeys(n for n in imported if n.startswith(("tasks.", "flows.work."))))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), ours


def _code_of(module: str, seen: dict[str, str]) -> None:
    """Collect the code of a module, and of all of `tasks` and of bodies that it imports."""
    found = _read(module)
    if module in seen or found is None:
        return
    seen[module] = found[0]
    for name in found[1]:
        _code_of(name, seen)


def _code_digest(kind: str) -> str:
    seen: dict[str, str] = {}
    _code_of(NODE_KINDS[kind].entry.partition(":")[0], seen)
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()


def test_a_kind_whose_code_changed_has_a_new_version_or_is_acknowledged():
    found = {k: {"version": v.version, "digest": _code_digest(k)} for k, v in sorted(NODE_KINDS.items())}
    if os.environ.get("UPDATE_NODE_VERSIONS") == "1":
        VERSIONS.write_text(json.dumps(found, indent=1) + "\n")
    assert VERSIONS.exists(), f"{VERSIONS} is missing: run this test with UPDATE_NODE_VERSIONS=1"
    known = json.loads(VERSIONS.read_text())
    stale = [k for k, v in found.items() if known.get(k) != v]
    assert not stale, (
        f"the code of {', '.join(stale)} changed. Where results may differ for the same params, raise `version` in "
        "flows/nodes.py; then (or where they cannot differ) run this test with UPDATE_NODE_VERSIONS=1 to acknowledge it"
    )
    assert set(known) == set(found)


def test_every_entry_is_a_function_of_its_module():
    for kind in NODE_KINDS.values():
        module, _, name = kind.entry.partition(":")
        path = _source(module)
        assert path is not None, kind.entry
        tree = ast.parse(path.read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, kind.entry


def test_estimates_add_up():
    for node in plan():
        e = node.estimate
        assert e.memory_gb == pytest.approx(sum(e.memory_parts.values()))
        assert e.seconds > 0
        assert e.teacher_calls == 0


def test_estimates_follow_the_program():
    found = nodes(plan())
    assert found["rl"].estimate.rollouts == 5 * 32 * 8
    assert found["rl.preflight1"].estimate.rollouts == 100 * 8
    assert found["harvest.collect1"].estimate.rollouts == 50 * 4
    assert found["eval.init.hidden"].estimate.rollouts == 800 * 2
    without = nodes(plan(changed(SMALL, "evaluation.greedy", False)))
    assert without["eval.init.hidden"].estimate.rollouts == 800


def test_memory_names_what_it_consists_of():
    plain = nodes(plan())["rl"].estimate.memory_parts
    assert "reference" not in plain
    kl = nodes(plan(changed(SMALL, "stages.2.algorithm.kl_coef", 0.1)))["rl"].estimate.memory_parts
    assert kl["reference"] == kl["weights"]
    muon = changed(SMALL, "stages.2.algorithm.optimizer", {"kind": "muon", "learning_rate": 0.1})
    assert nodes(plan(muon))["rl"].estimate.memory_parts["optimizer"] == pytest.approx(plain["optimizer"] / 2)


def test_rates_are_those_measured():
    """Tokens a second of training in fp32: 25k at 0.85M parameters, 110 at 135M (within a third)."""
    assert train_rate(Shape(128, 4, 4, 2, 384, 512)) == pytest.approx(25_000, rel=0.33)
    assert train_rate(Shape(576, 30, 9, 3, 1536, 49152)) == pytest.approx(110, rel=0.33)
    assert Shape(576, 30, 9, 3, 1536, 49152).parameters == 134_515_008


def test_seeds_differ_by_name_and_by_program():
    assert node_seed(17, "a") != node_seed(17, "b")
    assert node_seed(17, "a") != node_seed(18, "a")
    assert 0 <= node_seed(17, "a") < 2**31


def test_a_run_key_with_the_same_digests_is_the_same_key():
    made = plan()
    node = made.node("teach")
    assert content_key(node, dict.fromkeys(node.inputs, "x")) == content_key(
        node, dict.fromkeys(reversed(node.inputs), "x")
    )
    assert content_key(node, dict.fromkeys(node.inputs, "x")) != content_key(node, dict.fromkeys(node.inputs, "y"))


def test_an_unknown_node_is_named_with_what_is_near():
    with pytest.raises(ProgramError, match=r"no node is called 'teech'; did you mean teach"):
        plan().node("teech")


@pytest.mark.parametrize("data", [{}, {"schema": 2}, {"schema": 1}, {"schema": 1, "nodes": [{}], "stages": []}])
def test_a_foreign_plan_is_refused(data: dict[str, object]):
    with pytest.raises(ProgramError, match="plan: "):
        plan_from(data)
