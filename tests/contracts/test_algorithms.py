"""An algorithm stands wherever one must: what the type checker reads, losses, the loss in words, the smallest form."""

import ast
import inspect
from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest

from flows.describe import effective_loss
from flows.smoke import SIZES
from specs.algorithms import ALGORITHMS, POLICY_GRADIENTS, PREFERENCES
from specs.base import Spec
from specs.compression import Compression
from specs.ladder import TaughtAlgorithm
from specs.policy_gradient import PolicyGradient
from specs.preference import PairAlgorithm
from specs.self_teaching import SelfTaught
from tasks.learning.algorithms import FORMS, MODULES
from tests.contracts.sources import ROOT, tree

WITHOUT_LOSS = (*get_args(Compression), *get_args(TaughtAlgorithm))
"""They change weights without one, or it follows from the signal that their teachers give."""
every = pytest.mark.parametrize("kind", ALGORITHMS.table)


def checked_unions() -> dict[str, set[type[Spec]]]:
    """Return the unions that only a type checker reads, by name, as the classes that they consist of."""
    (block,) = [n for n in tree(ROOT / "specs" / "algorithms.py").body if isinstance(n, ast.If)]
    found: dict[str, Any] = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            found |= {a.name: getattr(import_module(str(node.module)), a.name) for a in node.names}
        elif isinstance(node, ast.Assign):
            names = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
            found[ast.unparse(node.targets[0])] = {
                c for n in names for c in (found[n] if isinstance(found[n], set) else get_args(found[n]) or (found[n],))
            }
    return {n: c for n, c in found.items() if isinstance(c, set)}


def test_what_the_type_checker_reads_is_what_the_tables_say():
    unions = checked_unions()
    assert unions["Algorithm"] == {ALGORITHMS[k] for k in ALGORITHMS.table}
    assert unions["PolicyGradientAlgorithm"] == {ALGORITHMS[k] for k in POLICY_GRADIENTS}
    for kind in ALGORITHMS.table:
        assert get_args(ALGORITHMS[kind].model_fields["type"].annotation) == (kind,)
        assert issubclass(ALGORITHMS[kind], PolicyGradient) == (kind in POLICY_GRADIENTS)
        assert issubclass(ALGORITHMS[kind], PairAlgorithm) == (kind in PREFERENCES)


def takes(function: Any, spec: type[Spec]) -> bool:
    """Return whether the spec that a function is bound to may be this one."""
    hint = get_type_hints(function)["spec"]
    return any(issubclass(spec, c) for c in (get_args(hint) or (hint,)))


@every
def test_each_has_the_loss_of_its_own_spec(kind: str):
    spec = ALGORITHMS[kind]
    if spec in WITHOUT_LOSS:
        assert spec not in MODULES
        return
    if issubclass(spec, SelfTaught):
        assert set(FORMS) == set(get_args(spec.model_fields["form"].annotation))
        modules = list(FORMS.values())
    else:
        assert spec in MODULES, f"{kind} has no line in the table of tasks/learning/algorithms/__init__.py"
        modules = [MODULES[spec]]
    for module in modules:
        assert takes(module.loss, spec), f"the loss of {module.__name__} is not one of {spec.__name__}"
        assert list(inspect.signature(module.loss).parameters) == ["batch", "spec"]
    if issubclass(spec, PolicyGradient) and not issubclass(spec, SelfTaught):
        assert takes(modules[0].advantages, spec)


@every
def test_each_is_told_in_words_and_has_a_smallest_form(kind: str):
    spec: Any = ALGORITHMS.validate({"type": kind, **({"layers": 1} if kind == "prune" else {})})
    equation, words = effective_loss(spec, "sample")
    assert equation
    assert words, f"flows/describe.py and the flows/losses*.py beside it say nothing about {kind}"
    assert kind in SIZES, f"flows/smoke.py has no sizes for {kind}"
