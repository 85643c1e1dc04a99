"""A policy on a model server: the same contract as in this process, pushes that are proven, servers that are wrong."""

import contextlib
import threading
from pathlib import Path

import pytest
import torch

from specs.errors import Interrupted, ProgramError, RolloutError, ServiceError
from tasks.episodes import completions
from tasks.episodes.completions import CompletionsClient
from tasks.episodes.local import LocalSampler
from tasks.episodes.loopback import JSONHandler, LoopbackServer
from tasks.episodes.vllm_sampler import VLLMSampler, read_choice
from tasks.policy.served import export_for_server, untied_weights
from tasks.policy.store import Precision
from tasks.protocols import SampleRequest, SamplingSettings
from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.episodes.counter_world import counter_policy
from tests.tasks.episodes.serving import POLICY, Served, prompt, served

OTHER = counter_policy(seed=9)
WARM = SamplingSettings(1.0, 8, POLICY.template.stop_ids)
NEVER_STOPS = SamplingSettings(1.0, 6, ())


def test_it_draws_what_a_sampler_in_this_process_draws(tmp_path: Path) -> None:
    local = LocalSampler(POLICY, "start/0")
    with served(tmp_path, in_flight=3) as (wired, sampler):
        assert sampler.name == "vllm tiny-1 fp32"
        assert (sampler.max_length, sampler.tokenizer_digest) == (local.max_length, local.tokenizer_digest)
        contexts = {i: prompt(i) for i in range(9)}
        for turn in range(3):
            settings = (WARM, NEVER_STOPS, SamplingSettings(0.5, 4, WARM.stop_ids))[turn]
            requests = [SampleRequest(i, c, 100 * turn + i, settings) for i, c in contexts.items()]
            ours, theirs = local.generate(requests), sampler.generate(requests)
            for a, b in zip(ours, theirs, strict=True):
                assert (a.ids, a.finish, a.policy_version) == (b.ids, b.finish, b.policy_version)
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
            contexts = {r.session: r.ids + c.ids + prompt(turn)[:2] for r, c in zip(requests, ours, strict=True)}
        assert any(c.finish == "stop" for c in sampler.generate([SampleRequest(50 + i, prompt(i), i, SamplingSettings(1.0, 60, tuple(range(40)))) for i in range(4)]))  # fmt: skip
        assert 1 < wired.server.most_at_once <= 3
        greedy = sampler.generate([SampleRequest(80, prompt(1), 1, SamplingSettings(0.0, 3, ()))])[0]
        assert greedy == local.generate([SampleRequest(80, prompt(1), 1, SamplingSettings(0.0, 3, ()))])[0]
        assert sampler.generate([]) == []


def test_the_stop_token_is_kept_with_its_logprob(tmp_path: Path) -> None:
    every = SamplingSettings(1.0, 40, tuple(range(POLICY.tokenizer.size)))
    with served(tmp_path) as (_, sampler):
        found = sampler.generate([SampleRequest(0, prompt(2), 1, every)])[0]
        assert (len(found.ids), len(found.logprobs), found.finish) == (1, 1, "stop")
        near = (prompt(1) * 20)[: POLICY.config.max_length - 2]
        assert len(sampler.generate([SampleRequest(1, near, 1, NEVER_STOPS)])[0].ids) == 2
        with pytest.raises(RolloutError, match="max_length"):
            sampler.generate([SampleRequest(9, [*near, 1, 1], 1, WARM)])
        with pytest.raises(RolloutError, match="outside of 0 to"):
            sampler.generate([SampleRequest(9, [10**6], 1, WARM)])
        with pytest.raises(RolloutError, match="same session twice"):
            sampler.generate([SampleRequest(1, prompt(1), 1, WARM), SampleRequest(1, prompt(1), 1, WARM)])
        answer = sampler.generate([SampleRequest(5, prompt(1), 1, WARM)])[0]
        with pytest.raises(RolloutError, match="token drift"):
            sampler.generate([SampleRequest(5, [7, *prompt(1)[1:], *answer.ids, 7], 2, WARM)])


def test_new_weights_use_nothing_computed_before(tmp_path: Path) -> None:
    """KP-ROLL-03: the same prompt under new weights is sampled as if the server had never seen it."""
    with served(tmp_path) as (wired, sampler):
        first = sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])[0]
        sampler.load_weights(OTHER.model, "v2")
        again = sampler.generate([SampleRequest(1, prompt(1), 1, WARM)])[0]
        assert again.ids == LocalSampler(OTHER, "v2").generate([SampleRequest(1, prompt(1), 1, WARM)])[0].ids
        assert (first.policy_version, again.policy_version) == ("start/0", "v2")
        assert (wired.server.version, wired.server.resets, sampler.pushes) == ("v2", 2, 2)
        with pytest.raises(ProgramError, match="expected another one"):
            sampler.load_weights(POLICY.model, "v2")
        with pytest.raises(ProgramError, match="another shape"):
            sampler.load_weights(counter_policy(max_length=50).model, "v3")


def test_a_server_that_kept_its_cache_is_found(tmp_path: Path) -> None:
    with (
        served(tmp_path, "keeps_cache") as (_, sampler),
        pytest.raises(RolloutError, match="kept what it had computed"),
    ):
        sampler.load_weights(OTHER.model, "v2")


def test_a_tied_output_layer_that_is_not_reloaded_is_found(tmp_path: Path) -> None:
    """The server reads a folder that ties its output layer, so it keeps the first one whatever is pushed."""
    assert POLICY.config.tied
    with (
        served(tmp_path, tied=True) as (_, sampler),
        pytest.raises(RolloutError, match="an output layer tied to the embedding is not reloaded"),
    ):
        sampler.load_weights(OTHER.model, "v2")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_what_is_exported_for_a_server_is_untied_and_the_same_policy(
    tmp_path: Path, precision: Precision, dtype: torch.dtype
) -> None:
    from safetensors.torch import load_file

    export_for_server(POLICY, tmp_path, precision, max_length=96)
    weights = load_file(tmp_path / "model.safetensors")
    off = weights["lm_head.weight"].float() - weights["model.embed_tokens.weight"].float()
    torch.testing.assert_close(off, off[:1].expand_as(off), atol=4e-3 if precision == "bf16" else 0.0, rtol=0)
    assert {w.dtype for w in weights.values()} == {dtype}
    assert '"tie_word_embeddings": false' in (tmp_path / "config.json").read_text()


def test_what_logits_share_is_taken_off_before_they_are_rounded() -> None:
    policy = counter_policy()
    with torch.no_grad():
        policy.model.embed.weight += 2.0  # every logit is large, and they differ by little
        states = policy.model.hidden(torch.tensor([prompt(i) for i in range(20)]))[:, -1]
        wanted = policy.model.head(states).log_softmax(-1)
    apart: list[float] = []
    for weight in (
        policy.model.head_weight.detach().bfloat16(),
        untied_weights(policy.model, "bf16")["lm_head.weight"],
    ):
        found = (states.bfloat16() @ weight.t()).float().log_softmax(-1)
        apart.append(float((found - wanted).abs().mean()))
    assert apart[1] < apart[0] / 4


@pytest.mark.parametrize(
    ("faults", "error", "text"),
    [
        ("raw_logprobs", RolloutError, r"not those after temperature.*--logprobs-mode processed_logprobs"),
        ("not_dev", ServiceError, "VLLM_SERVER_DEV_MODE=1"),
        ("no_ids", RolloutError, "return_token_ids"),
        ("other_prompt", RolloutError, "other ids than were sent"),
    ],
)
def test_a_server_that_is_wrong_is_refused_at_the_start(
    tmp_path: Path, faults: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text), served(tmp_path, faults):
        pass


def test_weights_that_do_not_arrive_are_found(tmp_path: Path) -> None:
    with (
        served(tmp_path, "skips_reload") as (_, sampler),
        pytest.raises(RolloutError, match="does not hold these weights"),
    ):
        sampler.load_weights(OTHER.model, "v2")


def test_a_completion_that_passes_its_stop_is_refused(tmp_path: Path) -> None:
    stops = SamplingSettings(1.0, 30, tuple(range(200)))
    with (
        served(tmp_path, "ignores_stop") as (_, sampler),
        pytest.raises(RolloutError, match="does not keep to the stop tokens"),
    ):
        sampler.generate([SampleRequest(0, prompt(1), 1, stops)])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("positive_logprob", "gave the logprob 0.5, expected"),
        ("strange_id", rf"drew the token {POLICY.config.vocab_size}, expected 0 to"),
        ("negative_id", "drew the token -1, expected"),
        ("weights_move", "holds weights 'theirs/8', expected 'start/0'"),
    ],
)
def test_what_no_policy_could_draw_is_not_believed(tmp_path: Path, fault: str, text: str) -> None:
    with served(tmp_path, fault) as (_, sampler), pytest.raises(RolloutError, match=text):
        sampler.generate([SampleRequest(0, prompt(1), 1, NEVER_STOPS)])


@pytest.mark.parametrize("ids", [[1.5, 2], [True, 2], ["1", 2], [float("inf"), 2]])
def test_ids_are_whole_numbers(ids: list[object]) -> None:
    choice = {"token_ids": ids, "finish_reason": "stop", "prompt_token_ids": [1]}
    answer = {"choices": [{**choice, "logprobs": {"token_logprobs": [-1, -1]}}]}
    with pytest.raises(RolloutError, match="model server: drew the token"):
        read_choice(answer, [1], 10)


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf"), 0.01])
def test_logprobs_are_finite_and_at_most_0(logprob: float) -> None:
    choice = {"token_ids": [1, 2], "finish_reason": "stop", "prompt_token_ids": [1]}
    answer = {"choices": [{**choice, "logprobs": {"token_logprobs": [0.0005, logprob]}}]}
    with pytest.raises(RolloutError, match=r"gave the logprob .*, expected a finite number of at most 0"):
        read_choice(answer, [1], 10)


def test_a_server_that_was_started_anew_meanwhile_is_asked_again(tmp_path: Path) -> None:
    with served(tmp_path) as (wired, sampler):
        expected = sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])[0]
        complete = sampler._client.complete

        def forgetful(bodies: object, done: object) -> None:  # as a server that starts again by itself
            complete(bodies, done)  # pyright: ignore[reportArgumentType]
            wired.server.version = None

        sampler._client.complete = forgetful
        found = sampler.generate([SampleRequest(1, prompt(1), 1, WARM)])[0]
        assert found.ids == expected.ids
        assert (sampler.restarts, sampler.repeated) == (1, 1)


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(JSONHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b" " * 65536)
            self.close_connection = True

    monkeypatch.setattr(completions, "MAX_ANSWER", 2**20)
    http = LoopbackServer(0, Endless)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    client = CompletionsClient(f"http://127.0.0.1:{http.server_address[1]}", in_flight=1, seconds=5)
    with pytest.raises(RolloutError, match="answered more than 1048576 bytes"):
        client.get("/version")
    client.close()
    http.shutdown()
    http.close_connections()
    http.server_close()
    thread.join()


def test_another_tokenizer_is_refused_by_its_encoding(tmp_path: Path) -> None:
    other = counter_policy(max_length=200)
    folder = tmp_path / "policy"
    export_for_server(other, folder, "fp32", max_length=200)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("{1,2}", "{1,3}"), encoding="utf-8")
    with CompletionsServer(folder) as server, pytest.raises(ProgramError, match="serves another tokenizer or template"):
        VLLMSampler(Served(server, folder), POLICY, "v", "fp32")
    (folder / "tokenizer.json").write_text(text.replace("<|end|>", "<|fin|>"), encoding="utf-8")
    with CompletionsServer(folder) as server, pytest.raises(ProgramError, match=r"cuts '<\|end\|>'"):
        VLLMSampler(Served(server, folder), POLICY, "v", "fp32")


def test_a_stranger_on_the_port_is_named(tmp_path: Path) -> None:
    export_for_server(POLICY, tmp_path, "fp32", max_length=96)
    with (
        CompletionsServer(tmp_path, "somebody-elses") as server,
        pytest.raises(ServiceError, match="another process took its port"),
    ):
        VLLMSampler(Served(server, tmp_path), POLICY, "v", "fp32")
    with CompletionsServer(tmp_path, max_length=50) as server, pytest.raises(ProgramError, match="--max-model-len 96"):
        VLLMSampler(Served(server, tmp_path), POLICY, "v", "fp32")


def test_weights_that_somebody_else_put_there_are_not_sampled(tmp_path: Path) -> None:
    with served(tmp_path) as (wired, sampler):
        wired.server.version = "theirs/7"
        with pytest.raises(RolloutError, match=r"holds weights 'theirs/7', expected 'start/0': somebody else"):
            sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])


def test_an_error_is_asked_again_and_a_lost_server_is_given_its_weights_again(tmp_path: Path) -> None:
    said: list[str] = []
    with served(tmp_path, "error_once", say=said.append) as (wired, sampler):
        found = sampler.generate([SampleRequest(i, prompt(i), i, WARM) for i in range(4)])
        assert (wired.server.errors, sampler.restarts, said) == (1, 0, [])
        wired.server.version = None  # as after a start of its own
        again = sampler.generate([SampleRequest(10 + i, prompt(i), i, WARM) for i in range(4)])
        assert [c.ids for c in again] == [c.ids for c in found]
        assert (sampler.restarts, sampler.repeated, len(wired.restarted)) == (1, 4, 1)
        assert "died once" in said[0]
        assert "4 requests repeated" in said[0]
        wired.server.version = None
        with pytest.raises(ServiceError, match=r"died twice in this node .*run\.sampler\.kind=local"):
            sampler.generate([SampleRequest(20, prompt(1), 1, WARM)])


def test_deadline_and_stop_end_a_call_in_time(tmp_path: Path) -> None:
    stop = threading.Event()
    with served(tmp_path, "hangs", stop=stop.is_set) as (wired, sampler):
        threading.Timer(0.5, stop.set).start()
        with pytest.raises(Interrupted):
            sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])
        stop.clear()
        wired.model = None  # somebody else's: it is not started again
        sampler._client._seconds = 0.5
        with pytest.raises(ServiceError, match=r"no whole answer within 0 s.*run\.sampler\.request_seconds"):
            sampler.generate([SampleRequest(0, prompt(1), 1, WARM)])
