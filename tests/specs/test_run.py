"""What the execution half of a program refuses, and with which words."""

from pathlib import Path

import pytest

from specs.run import VLLMSampling
from tests.specs.programs import BASE, refused


def _sampler(text: str) -> str:
    return f"{BASE}run: {{sampler: {{kind: vllm, {text}}}}}\n"


@pytest.mark.parametrize(
    "word",
    [
        "--host", "--host=0.0.0.0", "--hos=0.0.0.0", "--uds=x", "--config=y.yaml", "--port=80", "--model=other",
        "--trust-remote-code", "--served-model-name=x", "--api-key",
        "--api-key=canary", "--api_key=canary", "--served_model_name", "--logprobs-mode=raw_logits",
        "--generation-config", "--generation-config.x=1", "--",
    ],
)  # fmt: skip
def test_an_argument_that_tutelage_sets_is_refused(tmp_path: Path, word: str) -> None:
    message = refused(tmp_path, _sampler(f'arguments: ["--tensor-parallel-size=2", "{word}", "0.0.0.0"]'))
    assert "run.sampler.arguments" in message
    assert "tutelage sets" in message
    assert "canary" not in message


def test_other_arguments_are_taken() -> None:
    words = ["--tensor-parallel-size=2", "--max-model-len", "512", "--model-impl=vllm", "-tp", "2", "--host-memory=1"]
    assert VLLMSampling(kind="vllm", arguments=words).arguments == words


@pytest.mark.parametrize(
    "url",
    [
        "http://0.0.0.0:8000", "http://10.0.0.7:8000", "http://example.com", "http://[::]:8000", "http://localhost.example.com",
        "http://127.0.0.1.example.com", "http://2130706433:8000", "http://[::1", "http://:8000", "http://127.0.0.1:99999",
    ],
)  # fmt: skip
def test_a_server_elsewhere_is_refused(tmp_path: Path, url: str) -> None:
    message = refused(tmp_path, _sampler(f'url: "{url}"'))
    assert "run.sampler.url" in message
    assert "expected http:// and a host of the loopback (127.0.0.1, [::1] or localhost)" in message


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.8.9.1/", "http://localhost:8000", "http://[::1]:8000"]
)
def test_a_server_on_the_loopback_is_taken(url: str) -> None:
    assert VLLMSampling(kind="vllm", url=url).url == url
