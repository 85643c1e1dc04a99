"""What becomes a data version: every data set, and the trajectories of every node that writes some."""

import inspect
from importlib import import_module

import pytest

from flows.estimates import Estimate
from flows.nodes import NODE_KINDS, Node, Plan
from flows.publication import groups


def writes_trajectories(kind: str) -> bool:
    module, function = NODE_KINDS[kind].entry.split(":")
    body = inspect.getsource(getattr(import_module(module), function))
    return 'node.out / "trajectories"' in body


WRITERS = sorted(k for k in NODE_KINDS if writes_trajectories(k))


def test_stages_that_roll_out_are_among_those_looked_at():
    assert {"collect", "train.opd", "lessons", "evaluate"} <= set(WRITERS)


@pytest.mark.parametrize("kind", WRITERS)
def test_whoever_writes_trajectories_has_them_published(kind: str):
    name = "eval.stage.hidden" if kind == "evaluate" else "stage"
    node = Node(name, kind, 1, {}, 0, {}, Estimate())
    plan = Plan("p", "", 0, "", {}, (node,), {}, ("stage",), {}, {}, {}, {})
    assert groups(plan) == {"stage": [node]}
