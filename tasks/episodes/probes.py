"""Proofs that a server holds this policy: it cuts texts into the same ids, and gives its tokens the same logprobs."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from specs.errors import ProgramError, RolloutError
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy, Precision
from tasks.protocols import SampleRequest, SamplingSettings
from tasks.tokens.template import specials_of

TEXTS = (
    'Where is order 48213, and when will "Ann O\'Neil" get it? {"tool":"find","id":7}',
    "  def f(x):\n\treturn x ** 2 - 3.14159  # naïve, 2nd try\r\n",
    "Größe 42½, 北京 🎯🏳️‍🌈, ÅÄÖ, don't, I'LL, 1000000 and 007",
    "a  b   c\n\n\nd ... !!! ??? <tag/> &amp; C:\\temp\\x",
)
"""Texts on which tokenizers differ: digits, spaces, quotes, accents, emoji, code."""
_TOKENS = 8
_CONTEXT = 200
"""Tokens of a context: more than a block of a prefix cache, where the policy has room for them."""
_TEMPERATURES = (1.0, 0.6)
_LARGEST = {"fp32": 2e-3, "bf16": 0.5}
_MEAN = {"fp32": 5e-4, "bf16": 0.05}
"""Differences of a logprob, in nats, that the arithmetic alone may cause."""


class Asks(Protocol):
    """What a probe needs of a client."""

    url: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        ...


def check_encoding(client: Asks, model: str, policy: LoadedPolicy) -> None:
    """Raise ProgramError, naming text and ids, where the server's tokenizer or special tokens are not the policy's."""
    tokenizer, template = policy.tokenizer, policy.template
    expected = {text: tokenizer.encode(text) for text in TEXTS}
    expected |= {name: [tokenizer.special(name)] for name in specials_of(template.name)}
    for text, ids in expected.items():
        found = client.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}).get("tokens")
        if found != ids:
            raise ProgramError(
                f"{client.url}: it cuts {text[:24]!r}… into {_shown(found)}, the policy ({template.name}) into "
                f"{_shown(ids)}: it serves another tokenizer or template. Start it with a policy of this program, or "
                "leave run.sampler.url out"
            )


def _shown(ids: Any) -> str:
    return f"{ids[:6]} ({len(ids)} ids)" if isinstance(ids, list) else repr(ids)


def probes_of(policy: LoadedPolicy) -> list[SampleRequest]:
    """Return requests that every push is tried on: two contexts, each at two temperatures."""
    length = max(1, min(_CONTEXT, policy.config.max_length - _TOKENS))
    ids = [i for text in TEXTS for i in policy.tokenizer.encode(text)]
    ids = ids * (1 + (length + 1) // len(ids))
    contexts = (ids[:length], ids[1 : length + 1])
    return [
        SampleRequest(10 * n + m, context, 1 + 10 * n + m, SamplingSettings(temperature, _TOKENS))
        for n, context in enumerate(contexts)
        for m, temperature in enumerate(_TEMPERATURES)
    ]


@torch.no_grad()
def expected_logprobs(model: Llama, context: Sequence[int], drawn: Sequence[int], temperature: float) -> list[float]:
    """Return the model's own logprobs of drawn tokens, after temperature."""
    device = model.embed.weight.device
    ids = torch.tensor([[*context, *drawn]], device=device)
    logits = model.head(model.hidden(ids))[0, -len(drawn) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, -len(drawn) :, None])[:, 0].tolist()


def check_probe(
    url: str,
    model: Llama,
    probes: Sequence[SampleRequest],
    drawn: Sequence[tuple[list[int], list[float]]],
    precision: Precision,
) -> None:
    """Raise RolloutError where what a server drew for the probes has other logprobs than the policy gives it."""
    gaps: dict[float, list[float]] = {t: [] for t in _TEMPERATURES}
    for probe, (ids, logprobs) in zip(probes, drawn, strict=True):
        expected = expected_logprobs(model, probe.ids, ids, probe.settings.temperature)
        gaps[probe.settings.temperature] += [abs(a - b) for a, b in zip(expected, logprobs, strict=True)]
    bad = {t: g for t, g in gaps.items() if not (max(g) <= _LARGEST[precision] and sum(g) / len(g) <= _MEAN[precision])}
    if not bad:
        return
    worst = max(max(g) for g in bad.values())
    if 1.0 not in bad:
        raise RolloutError(
            f"{url}: its logprobs at temperature {min(bad)} are off by up to {worst:.3f} nats, those at 1.0 are right: "
            "they are not those after temperature. Start the server with --logprobs-mode processed_logprobs"
        )
    raise RolloutError(
        f"{url}: after its weights were pushed, the logprobs of what it draws are off by up to {worst:.3f} nats, "
        f"expected at most {_LARGEST[precision]:g}: it does not hold these weights whole (an output layer tied to the "
        "embedding is not reloaded), kept what it had computed with others, or computes in another precision than "
        "policy.sampler_precision. Nothing was sampled from it"
    )
