"""What moves a key and what does not."""

import re
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.nodes import NODE_KINDS, key_params
from flows.plan import same, save_bytes
from specs.agents import ToolLoop
from specs.algorithms import Algorithm
from specs.base import Spec
from specs.gates import Evaluation
from specs.reward import Reward
from specs.run import Budget, Run
from specs.shapes import TAGS, Shape, field_shape, is_spec, members, shape_of
from tests.flows.programs import SMALL, changed, closure, moved, nodes, plan, resolution

QUICK = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
BASE = plan()

GIVEN: dict[str, st.SearchStrategy[Any]] = {
    "max_memory_gb": st.floats(500, 1000),  # less is refused, as the nodes do not fit
    "url": st.sampled_from(["http://127.0.0.1:8000", "http://[::1]:1/"]),
    "arguments": st.lists(st.sampled_from(["--tensor-parallel-size=2", "--enforce-eager"])),
}
"""Fields of which few of the values that their types allow can be."""


def settings_of(spec: type[Spec]) -> st.SearchStrategy[dict[str, Any]]:
    """Return what a spec may hold: its tag, and any of its other fields."""
    tags = {t: st.just(get_args(spec.model_fields[t].annotation)[0]) for t in TAGS if t in spec.model_fields}
    others = {
        n: GIVEN[n] if n in GIVEN else value_of(field_shape(f)) for n, f in spec.model_fields.items() if n not in tags
    }
    return st.fixed_dictionaries(tags, optional=others)


def value_of(shape: Shape) -> st.SearchStrategy[Any]:
    """Return the values of a field, by its type and bounds; one of another type has to be added here."""
    if len(alternatives := members(shape)) > 1:
        return st.one_of([value_of(a) for a in alternatives])
    (one,) = alternatives
    least = max([0, *(getattr(m, "ge", getattr(m, "gt", 0)) for m in one.limits)])
    most = min([10_000, *(getattr(m, "le", 10_000) for m in one.limits)])
    pattern = next((m.pattern for m in one.limits if getattr(m, "pattern", None)), ".+")
    if is_spec(one.type):
        return settings_of(one.type)
    if get_origin(one.type) is Literal:
        return st.sampled_from(get_args(one.type))
    return {
        bool: st.booleans(),
        int: st.integers(least, most),
        float: st.floats(least, most, exclude_min=True),
        str: st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True),
    }[one.type]


EXECUTION, BUDGET = settings_of(Run), settings_of(Budget)

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


TAUGHT = {
    **SMALL,
    "teachers": {"clerk": {"kind": "scripted", "environment": "desk", "gives": ["sample", "score"]}},
    "routing": [{"teachers": {"clerk": 1.0}}],
    "stages": [*SMALL["stages"], {"id": "learn", "algorithm": {"type": "from_teacher"}, "data": ["train"]}],
}


@pytest.mark.parametrize("written", [SMALL, TAUGHT], ids=["small", "taught"])
@QUICK
@given(run=EXECUTION, budget=BUDGET, about=st.text(max_size=20), tag=st.text(max_size=5))
def test_an_execution_setting_never_moves_a_key(
    written: dict[str, Any], run: dict[str, Any], budget: dict[str, Any], about: str, tag: str
):
    before = plan(written)
    other = plan({**written, "run": run, "budget": budget, "about": about, "tags": {"who": tag}})
    assert moved(before, other) == set()
    assert same(before, other)
    assert other.program_digest == before.program_digest


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


JUDGED = {
    **SMALL,
    "verifiers": {"state": {"kind": "environment_state"}, "tools": {"kind": "tool_trace"}},
    "reward": {"outcome": {"state": 1.0}},
}
SECTIONS: dict[str, tuple[type[Spec], dict[str, Any]]] = {
    "reward": (
        Reward,
        {
            "floor": -2.0, "must": ["tools"], "outcome": {"state": 1.0, "tools": 0.5}, "soft": {"tools": 0.1},
            "process_cap": 0.1, "process_per_call": 0.01, "process_per_error": -0.01, "per_extra_call": -0.01,
            "on_truncation": -0.1, "repetition": {}, "max_invalid": 0.2,
        },
    ),
    "evaluation": (Evaluation, {"samples": 2, "temperature": 0.5, "greedy": False, "confidence": 0.9}),
    "agent": (ToolLoop, {"call_format": "nested", "max_new_tokens": 41}),
}  # fmt: skip
"""Sections that nodes hold as they are: the spec, and another value of each of its fields."""
FIELDS = [(section, name, value) for section, (_, values) in SECTIONS.items() for name, value in values.items()]


@pytest.mark.parametrize(("section", "name", "value"), FIELDS, ids=[f"{s}.{n}" for s, n, _ in FIELDS])
def test_a_field_of_a_section_moves_the_nodes_that_hold_it(section: str, name: str, value: Any):
    before = plan(JUDGED)
    holding = [n.id for n in before if section in n.params]
    assert holding
    assert moved(before, plan(changed(JUDGED, f"{section}.{name}", value))) == closure(before, *holding)


def test_every_field_of_these_sections_is_changed():
    for section, (spec, values) in SECTIONS.items():
        graph = {"kind", "sets", "at_the_end"}  # another agent, or other nodes
        assert set(values) == set(spec.model_fields) - graph, section


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
