import pytest

from specs.turn_credit import G2PO
from tasks.learning.algorithms import g2po
from tasks.learning.grouping import Rewarded, Walk
from tests.tasks.learning.algorithms.gradients import value_and_gradient

SPEC = G2PO(type="g2po", discount=1.0, success_value=1.0)


def test_a_turn_is_worth_what_it_leads_to():
    walks = [Walk(["s", "a"], [True, True], True), Walk(["s", "b"], [True, True], False)]
    rewarded = Rewarded([1.0, 0.0], ["g"] * 2, walks=walks)
    assert g2po.worths(rewarded, [0, 1], SPEC) == {"s": 0.5, "a": 1.0, "b": 0.0}
    own = g2po.turns_own(rewarded, SPEC)
    # from s: to a is 0.5 better than the mean, to b 0.5 worse; gains are 0.5, 0, -0.5, 0
    assert own == pytest.approx({(0, 0): 1.0, (0, 1): 0.0, (1, 0): -1.0, (1, 1): 0.0})
    assert g2po.turn_advantages(rewarded, SPEC)[0] == pytest.approx([1.5, 0.5])


def test_an_invalid_call_costs_only_where_others_left_the_same_state():
    walks = [Walk(["s", "a"], [False, False], False), Walk(["s"], [True], False)]
    rewarded = Rewarded([0.0, 0.0], ["g"] * 2, walks=walks)
    assert g2po.within_states(rewarded, [0, 1], SPEC) == pytest.approx({(0, 0): -0.1, (0, 1): 0.0, (1, 0): 0.0})


def test_without_a_reward_there_is_no_advantage():
    rewarded = Rewarded([None, 1.0], ["g"] * 2, walks=[Walk(["s"], [True], False), Walk(["s"], [True], True)])
    assert g2po.turn_advantages(rewarded, SPEC) == [None, [0.0]]


def test_value_and_gradient():
    value, gradient, _ = value_and_gradient(g2po.loss, SPEC)
    assert value == pytest.approx(-0.088148, abs=2e-6)
    assert gradient[0] == pytest.approx([0.0, -0.134064, -0.2], abs=2e-6)
