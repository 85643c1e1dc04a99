import pytest
from pydantic import ValidationError

from specs.compression import Prune, Quantize
from specs.errors import TrainingError
from tasks.learning.compression import compress, mean_loss
from tasks.policy.pruning import without_layers
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

ROWS = random_rows(8)


def test_the_loss_is_the_learners():
    model = tiny_model()
    logprobs = learner(model).logprobs(ROWS)
    total = -sum(p for row in logprobs for p in row) / sum(r.trained for r in ROWS)
    assert mean_loss(model, ROWS) == pytest.approx(total, abs=1e-5)


def test_layers_by_loss_removes_the_one_that_is_missed_least():
    model = tiny_model()
    by_hand = [mean_loss(without_layers(model, [i]), ROWS) for i in range(2)]
    done = compress(model, ROWS, Prune(type="prune", layers=1, layers_by="loss"))
    assert done.loss == pytest.approx(min(by_hand))
    assert done.details["layers_removed"] == [by_hand.index(min(by_hand))]
    assert done.to_json()["parameters"] < done.to_json()["parameters_before"]


@pytest.mark.parametrize("by", ["influence", "last"])
def test_layers_neurons_and_heads_together(by):
    done = compress(tiny_model(), ROWS, Prune(type="prune", layers=1, layers_by=by, neurons=0.5))
    assert (done.model.config.layers, done.model.config.intermediate_size) == (1, 12)
    if by == "last":
        assert done.details["layers_removed"] == [0]


def test_rounding_costs_loss_and_saves_size():
    done = compress(tiny_model(), ROWS, Quantize(type="quantize", bits=3, group=8))
    assert done.loss != done.loss_before
    assert done.packed_mb < done.parameters * 2 / 1e6
    assert set(done.details["relative_error"]) == {
        f"blocks.{i}.{n}" for i in (0, 1) for n in ("qkv", "o", "gate_up", "down")
    }


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(TrainingError, match="at least one must stay"):
        compress(tiny_model(), ROWS, Prune(type="prune", layers=2))
    with pytest.raises(ValidationError, match="nothing is removed"):
        Prune(type="prune")
    with pytest.raises(ValidationError, match="layers_by is not read"):
        Prune(type="prune", neurons=0.5, layers_by="loss")
