"""What moves a key and what does not."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.nodes import NODE_KINDS, key_params
from flows.plan import same, save_bytes
from specs.algorithms import Algorithm
from specs.shapes import members, shape_of
from tests.flows.programs import SMALL, changed, closure, moved, nodes, plan, resolution

QUICK = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
BASE = plan()

EXECUTION = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["laptop", "server"]),
        "threads": st.integers(1, 64),
        "parallel": st.integers(1, 64),
        "device": st.sampled_from(["cpu", "auto"]),
        "micro_batch_tokens": st.integers(64, 100_000),
        "rollout_batch": st.integers(1, 1024),
        "agent_processes": st.integers(1, 256),
        "checkpoint_seconds": st.floats(0.1, 1000),
        "max_memory_gb": st.floats(500, 1000),
    },
)

SCHEDULE = st.fixed_dictionaries(
    {"cron": st.sampled_from(["* * * * *", "0 3 * * mon-fri"])},
    optional={
        "timezone": st.sampled_from(["UTC", "Europe/Berlin"]),
        "overlap": st.sampled_from(["skip", "wait"]),
        "catchup": st.sampled_from(["latest", "none"]),
        "active": st.booleans(),
    },
)
NOTIFY = st.fixed_dictionaries(
    {"on": st.lists(st.sampled_from(["held", "budget", "completed"]), min_size=1, max_size=2)},
    optional={"timeout_seconds": st.floats(0.5, 60)},
).flatmap(lambda n: st.sampled_from([{**n, "command": ["mail"]}, {**n, "webhook": "${env:NO_SUCH_ADDRESS}"}]))


@QUICK
@given(when=st.dictionaries(st.sampled_from(["nightly", "weekly"]), SCHEDULE, max_size=2), told=NOTIFY)
def test_when_it_runs_and_who_is_told_never_moves_a_key(when: dict[str, Any], told: dict[str, Any]):
    other = plan({**SMALL, "schedule": when, "notify": told})
    assert moved(BASE, other) == set()
    assert same(BASE, other)
    assert other.program_digest == BASE.program_digest


@QUICK
@given(run=EXECUTION, hours=st.floats(0.1, 100), about=st.text(max_size=20), tag=st.text(max_size=5))
def test_an_execution_setting_never_moves_a_key(run: dict[str, Any], hours: float, about: str, tag: str):
    data = {**SMALL, "run": run, "budget": {"wall_hours": hours}, "about": about, "tags": {"who": tag}}
    other = plan(data)
    assert moved(BASE, other) == set()
    assert same(BASE, other)
    assert other.program_digest == BASE.program_digest


# dotted path, another value, the nodes that read it
CHANGES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("data.demos.size", 201, ("data.demos",)),
    ("data.train.seed", 3, ("data.train",)),
    ("data.hidden.size", 801, ("data.hidden",)),
    ("apart.near_duplicate", 0.8, ("data.apart",)),
    ("policy.init.hidden_size", 64, ("policy.init",)),
    ("stages.0.algorithm.epochs", 2.0, ("teach",)),
    ("stages.0.algorithm.optimizer", {"learning_rate": 0.1}, ("teach",)),
    ("stages.0.data", {"demos": 2.0}, ("teach",)),
    ("stages.1.algorithm.samples", 5, ("harvest.collect1",)),
    ("stages.1.algorithm.temperature", 0.9, ("harvest.collect1",)),
    ("stages.1.algorithm.min_gain", 0.1, ("harvest.collect1",)),
    ("stages.1.algorithm.epochs", 3.0, ("harvest.fit1",)),
    ("stages.1.algorithm.optimizer", {"learning_rate": 0.1}, ("harvest.fit1",)),
    ("stages.2.algorithm.steps", 6, ("rl",)),
    ("stages.2.algorithm.kl_coef", 0.1, ("rl",)),
    ("stages.2.algorithm.temperature", 0.9, ("rl.preflight1", "rl")),
    ("stages.2.else_first.samples", 7, ("rl.first1.collect1",)),
    ("stages.2.preflight.problems", 50, ("rl.preflight1",)),
    ("stages.2.needs", {"success": 0.2}, ("rl.preflight1", "rl.choose1")),
    ("gates.ship.alpha", 0.01, ("gate.ship",)),
    ("gates.ship.require.0.at_least", 0.8, ("gate.ship",)),
]


@pytest.mark.parametrize(("path", "value", "roots"), CHANGES, ids=[f"{p}={v}" for p, v, _ in CHANGES])
def test_a_change_moves_exactly_what_depends_on_it(path: str, value: Any, roots: tuple[str, ...]):
    data = changed(SMALL, path, value)
    other = plan(data)
    readers = set(roots)
    if path.startswith("policy."):  # every node that holds the policy reads its spec
        readers |= {n.id for n in BASE if "policy" in n.params}
    assert moved(BASE, other) == closure(BASE, *readers)


def test_the_environment_moves_what_runs_in_it():
    other = plan(changed(SMALL, "environments.desk.max_turns", 5))
    assert moved(BASE, other) == closure(BASE, *(n.id for n in BASE if n.kind.startswith("data.") and n.inputs == {}))
    assert moved(BASE, plan(changed(SMALL, "environments.unused.max_turns", 5))) == set()


def test_a_verifier_moves_what_judges_with_it():
    other = plan(changed(SMALL, "verifiers.state.answer", False))
    judging = [n.id for n in BASE if "verifiers" in n.params]
    assert moved(BASE, other) == closure(BASE, *judging)
    assert "teach" not in moved(BASE, other)


@QUICK
@given(choice=st.lists(st.sampled_from(range(len(CHANGES))), unique=True, max_size=4))
def test_any_changes_together_leave_what_depends_on_none_of_them(choice: list[int]):
    data, readers = SMALL, set[str]()
    for index in choice:
        path, value, roots = CHANGES[index]
        data = changed(data, path, value)
        readers |= set(roots) | ({n.id for n in BASE if "policy" in n.params} if path.startswith("policy.") else set())
    other = plan(data)
    assert moved(BASE, other) <= closure(BASE, *readers)
    assert {n.id for n in other} == {n.id for n in BASE}
    assert save_bytes(other) == save_bytes(plan(data))


def test_another_round_keeps_the_rounds_before_it():
    other = plan(changed(SMALL, "stages.1.algorithm.rounds", 3))
    new = {"harvest.collect3", "harvest.fit3"}
    assert moved(BASE, other) == closure(
        other, *new, "eval.harvest.golden", "rl.preflight1", "rl.first1.collect1", "rl"
    )


def test_the_seed_moves_everything_that_is_drawn():
    other = plan(changed(SMALL, "seed", 18))
    assert moved(BASE, other) == {n.id for n in BASE}


def test_where_weights_lie_moves_nothing_and_their_digest_moves_all_policies():
    data = changed(SMALL, "policy.init", {"kind": "scratch", "tokenizer": {"kind": "bpe"}})
    assert moved(BASE, plan(data)) == set()
    init = {"policy": {"init": {"kind": "pretrained", "model": "a", "revision": None}}, "path": "/a", "digest": "1"}
    other = {"policy": {"init": {"kind": "pretrained", "model": "b", "revision": "1"}}, "path": "/b", "digest": "1"}
    assert key_params("policy.init", init) == key_params("policy.init", other)
    assert key_params("policy.init", init) != key_params("policy.init", {**init, "digest": "2"})


def test_every_unkeyed_param_is_one_that_its_kind_has():
    """A misspelt exception would silently do nothing."""
    by_kind = {n.kind: n.params for n in BASE}
    elsewhere = {f for m in members(shape_of(Algorithm)) for f in m.type.model_fields}
    for kind, known in NODE_KINDS.items():
        for path in known.unkeyed:
            if kind not in by_kind or path.startswith(("policy.init.", "path", "adapter.path", "access")):
                continue
            at: Any = by_kind[kind]
            for part in path.split("."):
                if path.startswith("algorithm.") and part in elsewhere and part not in at:
                    break
                assert part in at, f"{kind}: {path} is no param"
                at = at[part]


def test_what_the_machine_has_moves_no_key():
    from flows.compile import compile
    from tests.flows.programs import program

    small = resolution()
    assert moved(BASE, compile(program(), small)) == set()
    found = nodes(plan({**SMALL, "run": {"profile": "server"}}))
    assert found["teach"].threads == 2
    assert found["gate.ship"].threads == 1
