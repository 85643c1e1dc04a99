"""Rollouts that are kept until a checkpoint."""

import pytest

from flows.work.keeping import Keeper
from specs.errors import StateError
from tasks.loops.rollout_store import RolloutStore


def test_a_step_without_rollouts_is_no_damage_and_a_lost_one_is(tmp_path):
    store = RolloutStore(tmp_path / "rollouts")
    keeper = Keeper(store)
    keeper.keep(0, [])
    keeper.keep(1, [])
    keeper.flush(1)
    assert keeper.all(2) == []
    store.remove("step-000000")
    with pytest.raises(StateError, match="rollouts of step 0 are damaged or gone"):
        keeper.all(2)


def test_rollouts_that_were_stored_without_what_teachers_said_are_named(tmp_path):
    keeper = Keeper(RolloutStore(tmp_path / "rollouts"))
    keeper.keep(0, [])
    keeper.flush(1)
    with pytest.raises(StateError, match=r"teachers\.parquet: missing or damaged"):
        keeper.signals(1)
