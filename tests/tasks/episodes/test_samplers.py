"""What every sampler owes, in this process and behind a model server: the same requests, the same ids and logprobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specs.errors import ProgramError, RolloutError
from tasks.episodes.local import LocalSampler
from tasks.protocols import Sampler, SampleRequest, SamplingSettings
from tests.tasks.episodes.counter_world import counter_policy
from tests.tasks.episodes.serving import POLICY, prompt, served

STOP = POLICY.template.stop_ids
WARM = SamplingSettings(1.0, 8, STOP)
NEVER_STOPS = SamplingSettings(1.0, 6, ())


@pytest.fixture(params=["local", "served"])
def sampler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sampler]:
    if request.param == "local":
        yield LocalSampler(POLICY, "start/0")
        return
    with served(tmp_path) as (_, found):
        yield found


def trainer_logprobs(ids: list[int], number: int, temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = POLICY.model.head(POLICY.model.hidden(torch.tensor([ids])))[0, -number - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids[-number:])[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_first_importance_ratio_is_one_over_several_turns(sampler, temperature):
    settings = SamplingSettings(temperature, 5, ())
    contexts = {i: prompt(i) for i in range(6)}
    for turn in range(3):
        requests = [SampleRequest(i, contexts[i], 100 * turn + i, settings) for i in contexts if i % (turn + 1) == 0]
        for request, found in zip(requests, sampler.generate(requests), strict=True):
            ids = request.ids + found.ids
            ratio = (trainer_logprobs(ids, len(found.ids), temperature) - torch.tensor(found.logprobs)).exp()
            torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)
            contexts[request.session] = ids + prompt(turn)[:2]
        contexts = {r.session: contexts[r.session] for r in requests}


def test_tokens_depend_on_seed_and_context_not_on_the_batch(sampler):
    alone = [sampler.generate([SampleRequest(1000 + i, prompt(i), i, WARM)])[0] for i in range(12)]
    together = sampler.generate([SampleRequest(i, prompt(i), i, WARM) for i in range(12)])
    backwards = sampler.generate([SampleRequest(50 + i, prompt(i), i, WARM) for i in reversed(range(12))])[::-1]
    assert [c.ids for c in alone] == [c.ids for c in together] == [c.ids for c in backwards]
    for a, b in zip(alone, together, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert len({tuple(c.ids) for c in together}) > 6


def test_a_group_shares_its_prompt_and_differs_in_its_tokens():
    sampler = LocalSampler(POLICY, "v")
    found = sampler.generate([SampleRequest(i, prompt(3), i, NEVER_STOPS) for i in range(8)])
    assert sampler.encoded_tokens == len(prompt(3))
    assert len({tuple(c.ids) for c in found}) == 8
    assert all(c.finish == "length" and len(c.ids) == 6 for c in found)


def test_limits_stops_and_versions(sampler):
    budget = POLICY.config.max_length
    near = (prompt(1) * 20)[: budget - 2]
    found = sampler.generate(
        [
            SampleRequest(0, near, 1, NEVER_STOPS),
            SampleRequest(1, prompt(2), 1, SamplingSettings(0.0, 1, STOP)),
            SampleRequest(2, prompt(2), 1, SamplingSettings(1.0, 40, tuple(range(POLICY.tokenizer.size)))),
        ]
    )
    assert [(len(c.ids), c.finish) for c in found] == [(2, "length"), (1, "length"), (1, "stop")]
    assert {c.policy_version for c in found} == {"start/0"} == {sampler.policy_version}
    with pytest.raises(RolloutError, match="max_length"):
        sampler.generate([SampleRequest(9, [*near, 1, 1], 1, WARM)])
    with pytest.raises(RolloutError, match="context of 0 tokens"):
        sampler.generate([SampleRequest(9, [], 1, WARM)])
    assert sampler.generate([]) == []


def test_greedy_is_deterministic_and_agrees_with_the_model(sampler):
    found = sampler.generate([SampleRequest(i, prompt(4), i, SamplingSettings(0.0, 3, ())) for i in range(2)])
    assert found[0].ids == found[1].ids
    assert found[0].logprobs == [0.0, 0.0, 0.0]
    with torch.no_grad():
        logits = POLICY.model.head(POLICY.model.hidden(torch.tensor([prompt(4)])))
    assert found[0].ids[0] == int(logits[0, -1].argmax())


def test_a_context_that_does_not_extend_its_session_is_drift(sampler):
    first = SampleRequest(5, prompt(1), 1, WARM)
    answer = sampler.generate([first])[0]
    altered = [*first.ids, *answer.ids, 7]
    altered[2] += 1
    with pytest.raises(RolloutError, match="token drift"):
        sampler.generate([SampleRequest(5, altered, 2, WARM)])
    with pytest.raises(RolloutError, match="same session twice"):
        sampler.generate([SampleRequest(1, prompt(1), 1, WARM), SampleRequest(1, prompt(1), 1, WARM)])


def test_new_weights_use_nothing_computed_before():
    """KP-ROLL-03: the same session goes on under the new weights as if it had been sent to them whole."""
    other = counter_policy(seed=9)
    sampler, fresh = LocalSampler(POLICY, "v1"), LocalSampler(other, "v2")
    first = sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])[0]
    context = prompt(1) + first.ids + prompt(2)
    sampler.load_weights(other.model, "v2")
    found = sampler.generate([SampleRequest(0, context, 2, WARM)])[0]
    assert found == fresh.generate([SampleRequest(0, context, 2, WARM)])[0]
    assert (first.policy_version, found.policy_version) == ("v1", "v2")
    with pytest.raises(ProgramError, match="expected another one"):
        sampler.load_weights(POLICY.model, "v2")
    sampler.load_weights(POLICY.model)
    assert sampler.policy_version == "v1+3"
    with pytest.raises(ProgramError, match="another shape"):
        sampler.load_weights(counter_policy(max_length=50).model)


def test_bf16_keeps_its_logits_in_fp32():
    policy = counter_policy()
    with torch.no_grad():
        policy.model.embed.weight.mul_(20)  # logits whose steps in bf16 are wide
    sampler = LocalSampler(policy, "v", "bf16")
    one = SamplingSettings(1.0, 1, ())
    gaps: list[float] = []
    for i, found in enumerate(sampler.generate([SampleRequest(i, prompt(i), i, one) for i in range(32)])):
        with torch.inference_mode():
            state = sampler._model.hidden(torch.tensor([prompt(i)]))[0, -1].float()
            own = (policy.model.head_weight @ state).log_softmax(-1)[found.ids[0]]
        gaps.append(abs(float(own) - found.logprobs[0]))
    assert max(gaps) < 1e-3


def test_bf16_samples_from_a_copy_that_follows():
    policy, other = counter_policy(), counter_policy(seed=9)
    sampler = LocalSampler(policy, "v", "bf16")
    assert policy.model.embed.weight.dtype == torch.float32
    before = sampler.generate([SampleRequest(0, prompt(1), 1, NEVER_STOPS)])[0]
    ids = prompt(1) + before.ids
    gap = trainer_logprobs(ids, len(before.ids), 1.0) - torch.tensor(before.logprobs)
    assert gap.abs().mean() < 0.05
    sampler.load_weights(other.model, "w")
    after = sampler.generate([SampleRequest(0, prompt(1), 1, NEVER_STOPS)])[0]
    assert after == LocalSampler(other, "w", "bf16").generate([SampleRequest(0, prompt(1), 1, NEVER_STOPS)])[0]
