import errno
import random

import pytest
import torch

from specs.errors import StateError
from tasks.learning.checkpoints import Checkpointer, Pace, tensor_digest


def tensors(value):
    return {"a": torch.full((50,), float(value)), "b": torch.arange(6).reshape(2, 3), "scalar": torch.tensor(value)}


def saved(folder, *steps, identity="run"):
    checkpointer = Checkpointer(folder, identity)
    for step in steps:
        checkpointer.save(step, tensors(step), {"step": step, "x": 0.1})
    return checkpointer


def test_round_trip_and_two_are_kept(tmp_path):
    found = saved(tmp_path, 1, 2, 3).latest()
    assert found is not None
    assert (found.step, found.data) == (3, {"step": 3, "x": 0.1})
    assert tensor_digest(found.tensors) == tensor_digest(tensors(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]


def test_nothing_saved_is_none(tmp_path):
    assert Checkpointer(tmp_path / "none", "run").latest() is None


def damage(path, how, rng):
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if how == "cut":
        data = data[:at]
    elif how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    else:
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["cut", "flip", "zeros"])
@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path, how, name):
    rng = random.Random(f"{how}{name}")
    for trial in range(4):
        folder = tmp_path / str(trial)
        saved(folder, 1, 2)
        damage(folder / "step-000000002" / name, how, rng)
        checkpointer = Checkpointer(folder, "run")
        found = checkpointer.latest()
        assert found is not None
        assert found.step == 1
        assert "step-000000002" in checkpointer.damaged[0]
        assert (folder / "damaged-step-000000002").is_dir()


def test_all_damaged_is_refused_again_and_again(tmp_path):
    saved(tmp_path, 1, 2)
    for path in tmp_path.glob("step-*/tensors.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(StateError, match="every checkpoint is damaged"):
            Checkpointer(tmp_path, "run").latest()


def test_a_missing_file_counts_as_damage(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "step-000000002" / "state.json").unlink()
    found = Checkpointer(tmp_path, "run").latest()
    assert found is not None
    assert found.step == 1


def test_checkpoints_of_another_run_are_left_alone(tmp_path):
    saved(tmp_path, 9000, identity="other")
    checkpointer = saved(tmp_path, 40, 60, 80)
    found = checkpointer.latest()
    assert found is not None
    assert found.step == 80
    assert checkpointer.foreign == ["step-000009000"]
    checkpointer.remove()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000009000"]


def test_a_full_disk_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    checkpointer = saved(tmp_path, 40)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tasks.learning.checkpoints.save_file", full)
    with pytest.raises(StateError, match=r"disk full.*256 bytes needed"):
        checkpointer.save(60, tensors(60), {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000040"]
    found = checkpointer.latest()
    assert found is not None
    assert found.step == 40


def test_pace_leaves_most_of_the_time_to_training():
    pace = Pace(0.0)
    assert pace.due()
    pace.saved(1000.0)
    assert not pace.due()
