"""What a model server must prove before anything is paid: its tokens, its model, its weights."""

import copy
from typing import Any

import pytest
import torch

from specs.errors import ProgramError, ServiceError
from tasks.teachers.served_probes import check_encoding, check_fingerprint, check_server, fingerprint
from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.teachers.scored import FRAME, TOKENIZER, VOCABULARY, client
from tests.tasks.teachers.spoiled import spoiled
from tests.tasks.tokens.conversations import side, template


def test_the_right_server_proves_itself(server: CompletionsServer):
    asked = client(server.url)
    found = check_server(asked)
    assert (found.engine, found.root) == ("tiny-1", str(server.folder))
    check_encoding(asked, TOKENIZER, FRAME)
    probe = fingerprint(asked, TOKENIZER, 20)
    assert len(probe.ids) == 64
    check_fingerprint(asked, probe, VOCABULARY, 0)


def test_a_server_without_tokenize_proves_its_tokens_by_prompts(server: CompletionsServer):
    server.tokenizes = False
    check_encoding(client(server.url), TOKENIZER, FRAME)

    def untold(_: int, result: dict[str, Any]) -> Any:
        result["choices"][0].pop("prompt_token_ids", None)
        return result

    server.on_score = untold
    check_encoding(client(server.url), TOKENIZER, FRAME)
    other = side("builtin/compact@1", template())
    with pytest.raises(ProgramError, match=r"teachers\.big: its server cuts .* into .*the policy's tokenizer into"):
        check_encoding(client(server.url), *other)


def test_other_tokens_are_refused(server: CompletionsServer):
    other = side("builtin/compact@1", template())
    with pytest.raises(ProgramError, match=r"it has another tokenizer\. Write teachers\.big\.tokenizer"):
        check_encoding(client(server.url), *other)


def test_other_models_and_other_servers_are_refused(server: CompletionsServer):
    with pytest.raises(ProgramError, match=r"teachers\.big\.model: its server has no 'huge'; expected one of tiny"):
        check_server(client(server.url, model="huge"))
    with pytest.raises(ProgramError, match=r"found 96, but its server takes 96 tokens.*--max-model-len 97"):
        check_server(client(server.url, max_length=96))
    with pytest.raises(ServiceError, match=r"no whole reply .*teachers\.big\.url"):
        check_server(client("http://127.0.0.1:9"))
    with pytest.raises(ServiceError, match=r"there is no /v1/models"):
        check_server(client(f"{server.url}/elsewhere"))
    server.max_logprobs = 5
    with pytest.raises(ServiceError, match=r"too much is asked for: 20 logprobs.*--max-logprobs 20"):
        fingerprint(client(server.url), TOKENIZER, 20)


def test_other_weights_under_the_same_name_are_refused(server: CompletionsServer):
    probe = fingerprint(client(server.url), TOKENIZER, 0)
    before, other = server.model, copy.deepcopy(server.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2.0)
    server.model = other
    try:
        with pytest.raises(
            ProgramError, match=r"other weights are served as 'tiny'\. Write another teachers\.big\.revision"
        ):
            check_fingerprint(client(server.url), probe, VOCABULARY, 0)
    finally:
        server.model = before


def test_a_server_of_logits_is_refused(server: CompletionsServer):
    server.on_score = lambda number, result: spoiled("logits", result)
    with pytest.raises(ServiceError, match=r"not_probabilities.*started with logprobs, not logits"):
        fingerprint(client(server.url), TOKENIZER, 0)
