"""Every stage that draws its rollouts beforehand counts those that were cut, and stops above its declared limit."""

import pytest

from flows.work import lessons, preference, reward_models, supervised
from specs.agents import ToolLoop
from specs.errors import TrainingError
from specs.ladder import Draws
from specs.preference import Pairing
from specs.reward_models import TurnLabels
from specs.supervised import RFT, RewardWeighted
from tests.flows.test_stages import JUDGED, ROLL, base, node

__all__ = ["base"]

DRAWN = {"problems": 12, "temperature": 1.2}
STAGES = {
    "rft": (supervised.collect, {"algorithm": RFT(type="rft", samples=2, **DRAWN), "round": 1}),
    "reward_weighted": (
        supervised.collect,
        {"algorithm": RewardWeighted(type="reward_weighted", samples=2, require_success=False, **DRAWN), "round": 1},
    ),
    "pairs": (preference.pairs, {"pairing": Pairing(samples=2, at_least=0, **DRAWN)}),
    "alone": (preference.pairs, {"pairing": Pairing(samples=2, at_least=0, choose="alone", **DRAWN)}),
    "turns": (reward_models.turns, {"turns": TurnLabels(samples=2, at_least=0, **DRAWN)}),
    "lessons": (lessons.rollouts, {"draws": Draws(samples=2, **DRAWN)}),
}


def rolled(folder, at, stage, tokens, **changed):
    body, params = STAGES[stage]
    key = next(k for k in params if k != "round")
    params = params | {key: params[key].model_copy(update=changed), "agent": ToolLoop(max_new_tokens=tokens)}
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    return body(node(folder, stage, inputs, JUDGED | ROLL | params))


@pytest.mark.parametrize("stage", STAGES)
def test_too_many_cut_rollouts_stop_a_stage_with_advice(base, tmp_path, stage):
    told = f"stage {stage}: 100 % of the trajectories were cut, max_truncated is 0.9; raise agent.max_new_tokens or"
    with pytest.raises(TrainingError, match=told):
        rolled(tmp_path, base[1], stage, 2)


@pytest.mark.parametrize("stage", STAGES)
def test_some_are_counted_with_their_lengths(base, tmp_path, stage):
    notes = rolled(tmp_path, base[1], stage, 12).notes
    (told,) = [n for n in notes if "were cut" in n]
    assert " of 24 trajectories (" in told
    assert "of those that finished" in told
    assert told.endswith("raise agent.max_new_tokens or policy.init.max_length")
