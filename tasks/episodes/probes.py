"""Proofs that a server holds this policy: it cuts texts into the same ids, and gives its tokens the same logprobs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
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
_TIMES = 3
"""In bf16 a policy that is sure of itself has large logits, whose rounding weighs more at a low temperature: so many times
what the same arithmetic makes of the policy here is allowed as well."""


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
    found = [_Gaps(t) for t in _TEMPERATURES]
    for probe, (ids, logprobs) in zip(probes, drawn, strict=True):
        gaps = next(g for g in found if g.temperature == probe.settings.temperature)
        gaps.add(model, probe, ids, logprobs, precision)
    if any(g.before_temperature(precision) for g in found):
        worst = max(max(g.off) for g in found if g.temperature != 1.0)
        raise RolloutError(
            f"{url}: its logprobs at temperature {min(_TEMPERATURES)} are off by up to {worst:.3f} nats and are those of "
            "temperature 1: they are not those after temperature. Start the server with --logprobs-mode processed_logprobs"
        )
    bad = [g for g in found if not (max(g.off) <= g.largest(precision) and mean(g.off) <= g.average(precision))]
    if not bad:
        return
    worst = max(bad, key=lambda g: max(g.off))
    raise RolloutError(
        f"{url}: after its weights were pushed, the logprobs of what it draws at temperature {worst.temperature:g} are off by "
        f"up to {max(worst.off):.3f} nats and {mean(worst.off):.3f} in the mean, expected at most {worst.largest(precision):.2g} "
        f"and {worst.average(precision):.2g}: it does not hold these weights whole (an output layer tied to the "
        "embedding is not reloaded), kept what it had computed with others, or computes in another precision than "
        "policy.sampler_precision. Nothing was sampled from it"
    )


@dataclass(slots=True)
class _Gaps:
    """Absolute differences between logprobs of the tokens drawn at one temperature, in nats."""

    temperature: float
    off: list[float] = field(default_factory=list[float])
    """The server's against the policy's own."""
    off_raw: list[float] = field(default_factory=list[float])
    """The server's against the policy's own at temperature 1."""
    between: list[float] = field(default_factory=list[float])
    """The policy's own against those at temperature 1."""
    rounding: list[float] = field(default_factory=list[float])
    """The policy's own in bf16 against those in fp32."""

    def add(
        self, model: Llama, probe: SampleRequest, ids: Sequence[int], logprobs: Sequence[float], precision: Precision
    ) -> None:
        own = expected_logprobs(model, probe.ids, ids, self.temperature)
        raw = expected_logprobs(model, probe.ids, ids, 1.0)
        self.off += _apart(own, logprobs)
        self.off_raw += _apart(raw, logprobs)
        self.between += _apart(own, raw)
        if precision == "bf16":
            with torch.autocast(model.embed.weight.device.type, dtype=torch.bfloat16):
                self.rounding += _apart(own, expected_logprobs(model, probe.ids, ids, self.temperature))

    def largest(self, precision: Precision) -> float:
        return max(_LARGEST[precision], _TIMES * max(self.rounding, default=0.0))

    def average(self, precision: Precision) -> float:
        return max(_MEAN[precision], _TIMES * mean(self.rounding) if self.rounding else 0.0)

    def before_temperature(self, precision: Precision) -> bool:
        """Return whether the server's are rather those of temperature 1, where that makes a difference."""
        allowed = self.average(precision)
        return mean(self.off_raw) <= min(allowed, mean(self.off)) and mean(self.between) > allowed


def _apart(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other, strict=True)]
