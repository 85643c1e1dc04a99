"""A teacher behind a real server: the same logprobs as in process, and nothing but these where the server fails."""

import copy
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specs.alignment import Alignment
from specs.distillation import OPD, Distillation, FullVocabulary, SampledTokens, TopTokens
from specs.errors import DataError, Interrupted, ProgramError, StateError, TeacherError
from specs.optimizer import Optimizer
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.opening import in_policy_tokens
from tasks.learning.other_tokenizer import OtherTokenizerTeacher
from tasks.learning.teaching import Distiller, ask, covered, take_lists, weigh
from tasks.loops.token_lessons import Panel, ask_and_weigh
from tasks.loops.token_signals import signals_of
from tasks.policy.foreign import teacher_of
from tasks.policy.store import LoadedPolicy
from tasks.protocols import ListingTeacher, TokenScores
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.prompt_logprobs import Question, UnusableError, read
from tests.tasks.episodes.completions_server import CompletionsServer, Reply
from tests.tasks.learning.tiny import tiny_model
from tests.tasks.teachers.scored import (
    POLICY,
    VOCABULARY,
    rows_of,
    serving,
    spans_of,
    teacher,
)
from tests.tasks.teachers.spoiled import FINAL, SPOILED, spoiled
from tests.tasks.tokens.conversations import conversation, side, span, template


def in_process() -> OpenTeacher:
    return OpenTeacher("near", copy.deepcopy(POLICY.model))


def numbers(scores: list[TokenScores]) -> list[list[float | None]]:
    """Return logprobs that can be compared."""
    return [[None if math.isnan(x) else x for x in s.logprobs] for s in scores]


# --- what it says


def test_sampled_tokens_have_the_logprobs_of_the_same_weights_in_process(server: CompletionsServer, tmp_path: Path):
    spans = spans_of(12)
    found = teacher(tmp_path, server.url).score(spans)
    for one, other in zip(found, in_process().score(spans), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert len(server.scored) == 12


def test_its_likeliest_tokens_are_those_of_the_same_weights_in_process(server: CompletionsServer, tmp_path: Path):
    spans = spans_of(4)
    for listed, asked in zip(teacher(tmp_path, server.url).lists(spans, 5), spans, strict=True):
        with torch.no_grad():
            logits = POLICY.model.head(POLICY.model.hidden(torch.tensor([asked.ids])))[0]
        before = torch.tensor(asked.mask).nonzero()[:, 0] - 1
        values, ids = logits[before].log_softmax(-1).topk(5)
        assert listed is not None
        assert listed.ids_NK.tolist() == ids.tolist()
        np.testing.assert_allclose(listed.logprobs_NK, values, atol=1e-5)


OVERS = [
    TopTokens(kind="top_k", size=7, support="teacher"),
    TopTokens(kind="top_k", size=7, direction="forward"),
    TopTokens(kind="top_k", size=7, direction="jsd", support="teacher", rest="renormalize"),
    TopTokens(kind="top_k", size=7, direction="symmetric", support="teacher", rest="none"),
    SampledTokens(kind="sampled"),
]


@pytest.mark.parametrize("over", OVERS, ids=lambda o: f"{o.kind}-{getattr(o, 'direction', '')}")
def test_the_gradient_is_that_of_the_same_weights_in_process(server: CompletionsServer, tmp_path: Path, over: Any):
    made = OPD(type="opd", over=over)
    found: list[tuple[float, dict[str, float], list[torch.Tensor]]] = []
    said: list[list[Any]] = []
    for who in (in_process(), teacher(tmp_path, server.url)):
        model = tiny_model(3, VOCABULARY)
        learner = Learner(model, Optimizer(learning_rate=1e-3), 1, micro_batch_tokens=60)
        rows, trajectories = rows_of(6)
        panel = Panel([who], lambda _: [1.0])
        coverage = ask_and_weigh(made, rows, trajectories, panel)
        assert coverage.share == 1.0
        said.append([s.logprobs for s in signals_of(rows, trajectories, panel)])
        if not isinstance(over, SampledTokens):
            learner.distiller = Distiller(made, panel.over_vocabulary(made), trajectories, alone=True)
        kept: list[torch.Tensor] = []
        guard = lambda _, m=model, k=kept: k.extend(p.grad.clone() for p in m.parameters() if p.grad is not None)  # noqa: E731
        report = learner.step(rows, loss_for(made), guard=guard)
        found.append((report.loss, report.metrics, kept))
    rows, trajectories = rows_of(6)
    ask_and_weigh(
        Distillation(over=SampledTokens(kind="sampled")), rows, trajectories, Panel([in_process()], lambda _: [1.0])
    )
    for row, own in zip(rows, said[1], strict=True):  # also of a list, what is kept is the logprob of the token itself
        np.testing.assert_allclose(own, (row.scores or [])[0].logprobs, atol=1e-5)
    (loss, metrics, gradients), (served_loss, served, served_gradients) = found
    assert served_loss == pytest.approx(loss, abs=1e-5)
    for name in ("teacher_gap", "divergence", "teacher_mass", "policy_mass", "overlap"):
        assert served.get(name) == pytest.approx(metrics.get(name), abs=1e-5)
    assert served.get("unknown", 0.0) == 0.0
    for a, b in zip(gradients, served_gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_beside_a_teacher_in_process_each_has_its_own_loss(server: CompletionsServer, tmp_path: Path):
    made = Distillation(over=TopTokens(kind="top_k", size=5, support="teacher"), combine="sum")
    other, found = OpenTeacher("other", tiny_model(5, VOCABULARY)), list[float]()
    for first in (in_process(), teacher(tmp_path, server.url)):
        rows, trajectories = rows_of(5)
        weights = lambda t: [1.0, 0.0] if t.id == "t0" else [0.25, 0.75]  # noqa: E731
        panel = Panel([first, other], weights)
        ask_and_weigh(made, rows, trajectories, panel)
        learner = Learner(tiny_model(3, VOCABULARY), Optimizer(learning_rate=1e-3), 1)
        learner.distiller = Distiller(made, panel.over_vocabulary(made), trajectories, alone=True)
        found.append(learner.step(rows, loss_for(OPD(type="opd", over=made.over))).loss)
    assert found[1] == pytest.approx(found[0], abs=1e-5)


def test_a_sampled_token_that_is_not_listed_is_unknown_and_never_impossible():
    """KP-TEACH-04: of four tokens two are listed, and the one that was sampled is not."""
    entry = {"0": {"logprob": math.log(0.6)}, "1": {"logprob": math.log(0.3)}}
    reply = json.dumps({"choices": [{"prompt_logprobs": [None, entry, entry]}]}).encode()
    found = read(reply, Question((2, 0, 3), (1, 2), 2), 4)
    assert found.own_N[0] == pytest.approx(math.log(0.6))
    assert math.isnan(found.own_N[1])
    assert found.ids_NK.tolist() == [[0, 1], [0, 1]]


def test_rows_that_are_alike_are_asked_once_and_long_ones_never(server: CompletionsServer, tmp_path: Path):
    spans = spans_of(3)
    who = teacher(tmp_path, server.url, max_length=max(len(s.ids) for s in spans) - 1)
    found = who.score([*spans, *spans])
    longest = max(range(3), key=lambda i: len(spans[i].ids))
    assert all(math.isnan(x) for x in found[longest].logprobs)
    assert len(server.scored) == 2
    assert who.take_figures()["unscored_rows"] == 0.0
    assert isinstance(who, ListingTeacher)
    assert Panel([who], lambda _: [1.0]).heard(spans[longest].trajectory, len(spans[longest].ids)) == [0.0]


def test_another_temperature_is_refused(server: CompletionsServer, tmp_path: Path):
    spans = spans_of(1)
    spans[0].trajectory.sampling["temperature"] = 0.7
    with pytest.raises(ProgramError, match=r"temperature 0\.7, but its server gives logprobs at 1"):
        teacher(tmp_path, server.url).score(spans)
    assert teacher(tmp_path, server.url).lists(spans, 2)[0] is not None


def test_whole_distributions_are_refused(server: CompletionsServer, tmp_path: Path):
    panel = Panel([teacher(tmp_path, server.url)], lambda _: [1.0])
    with pytest.raises(DataError, match=r"lists its likeliest tokens alone; write over: \{kind: top_k"):
        panel.over_vocabulary(Distillation(over=FullVocabulary()))
    with pytest.raises(ProgramError, match=r"over\.size is 9999, but its vocabulary"):
        teacher(tmp_path, server.url).lists(spans_of(1), 9999)


def test_a_model_with_other_tokens_is_told_the_text(tmp_path: Path):
    made = template()
    own, other = side("builtin/compact@1", made), side("builtin/chatml@1", template("builtin/chatml@1", 320))
    net = tiny_model(1, other[0].size, 512)
    tokens = template("builtin/chatml@1", 320)
    policy = LoadedPolicy(net, tokens.tokenizer, tokens, net.config)
    taught = LoadedPolicy(tiny_model(2, own[0].size, 512), made.tokenizer, made, tiny_model(2, own[0].size, 512).config)
    trajectory, align = conversation(made), Alignment(max_gap=1e9)
    with serving(tmp_path / "model", policy) as far:
        asking = teacher(tmp_path, far.url, max_length=500)
        asking._vocabulary = other[0].size
        found = in_policy_tokens(asking, other, taught, align, over="sampled")
        near = OtherTokenizerTeacher(OpenTeacher("near", net), own, other, align)
        one, two = found.score([span(trajectory)])[0], near.score([span(trajectory)])[0]
        assert one.chunks == two.chunks
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-5)
        figures = Panel([found], lambda _: [1.0]).figures()
        assert figures["alignment_coverage"] > 0.9
        assert figures["teacher_rows"] == 1.0
        with pytest.raises(
            ProgramError, match=r"teachers\.big: its tokens are not the policy's .*over: \{kind: sampled\}"
        ):
            in_policy_tokens(asking, other, taught, align, over="top_k")
        with pytest.raises(ProgramError, match=r"align\.score: covers reads whole distributions"):
            in_policy_tokens(asking, other, taught, Alignment(score="covers"), over="sampled")


# --- where the server fails


@pytest.mark.parametrize("how", SPOILED)
def test_a_row_without_an_answer_has_no_score_and_is_counted(server: CompletionsServer, tmp_path: Path, how: str):
    spans = spans_of(10)
    bad = tuple(spans[4].ids[: max(i for i, m in enumerate(spans[4].mask) if m) + 1])
    server.on_score = lambda _, result: spoiled(how, result) if server.scored[_] == bad else result
    who = teacher(tmp_path, server.url, limits={"in_flight": 1})
    scores, expected = who.score(spans), in_process().score(spans)
    for i, (one, other) in enumerate(zip(scores, expected, strict=True)):
        if i == 4:
            assert all(math.isnan(x) for x in one.logprobs)
        else:
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    figures = who.take_figures()
    assert figures["unscored_rows"] == figures[f"unscored_{SPOILED[how][1]}"] == 1.0
    assert server.scored.count(bad) == (1 if how in FINAL else 2)
    assert figures["teacher_calls"] == len(server.scored)


@pytest.mark.parametrize("how", ["server_error", "cut", "busy", "none", "short"])
def test_what_fails_once_is_asked_again(server: CompletionsServer, tmp_path: Path, how: str):
    server.on_score = lambda number, result: spoiled(how, result) if number == 3 else result
    spans = spans_of(6)
    who = teacher(tmp_path, server.url, limits={"in_flight": 2})
    for one, other in zip(who.score(spans), in_process().score(spans), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert who.take_figures()["unscored_rows"] == 0.0
    assert len(server.scored) == 7


def test_too_many_rows_without_an_answer_stop_the_stage_and_the_others_are_kept(
    server: CompletionsServer, tmp_path: Path
):
    spans = spans_of(10)
    asked = {s.trajectory.id: tuple(s.ids[: max(i for i, m in enumerate(s.mask) if m) + 1]) for s in spans}
    bad = {asked["t1"], asked["t2"], asked["t3"]}
    server.on_score = lambda number, result: spoiled("nan", result) if server.scored[number] in bad else result
    told = (
        r"teacher big: 3 of 10 rows have no score \(3 not_finite\), failure_share is 0\.2; the last one: it gives the "
        r"logprob nan at place \d+\. .*what was scored is kept"
    )
    with pytest.raises(TeacherError, match=told):
        teacher(tmp_path, server.url).score(spans)
    server.on_score, server.scored = None, []
    who = teacher(tmp_path, server.url)  # another attempt of the node
    for one, other in zip(who.score(spans), in_process().score(spans), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert set(server.scored) == bad
    assert who.take_figures()["teacher_calls"] == 3 + 7  # those that the first attempt sent for what is used


def test_a_row_without_lists_loses_this_teacher_alone(server: CompletionsServer, tmp_path: Path):
    server.on_score = lambda number, result: spoiled("nan", result) if number == 0 else result
    rows, trajectories = rows_of(6)
    near, far = in_process(), teacher(tmp_path, server.url)
    made = Distillation(over=TopTokens(kind="top_k", size=4, support="teacher"), combine="sum")
    for row in rows:
        row.teacher_weights = [0.5, 0.5]
    take_lists(rows, [near, far], trajectories, 4)
    lost = [row for row in rows if row.lists and row.lists[1] is None]
    assert [row.teacher_weights for row in lost] == [[1.0, 0.0]]
    assert weigh(rows, made, trajectories).share == 1.0
    for row in rows:
        row.teacher_weights = [1.0] if row not in lost else [0.0]
    assert not any(covered(lost[0]))


def test_a_server_that_stays_away_ends_the_round(tmp_path: Path):
    limits = {"failures_in_a_row": 2, "pause_seconds": 0.05, "attempts": 1, "in_flight": 1}
    who = teacher(tmp_path, "http://127.0.0.1:9", limits=limits, failure_share=1.0)
    with pytest.raises(TeacherError, match=r"3 calls in a row failed \(teacher_unavailable: .*no whole reply"):
        who.score(spans_of(8))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(401), "answered 401: the key is not accepted"),
        (Reply(404), "answered 404: there is no such model"),
        (Reply(302, headers={"Location": "http://127.0.0.1:9/"}), "answered 302: it points to another address"),
    ],
)
def test_what_no_row_would_get_past_stops_at_once(server: CompletionsServer, tmp_path: Path, reply: Reply, said: str):
    server.on_score = lambda number, result: reply
    with pytest.raises(TeacherError, match=said):
        teacher(tmp_path, server.url, limits={"in_flight": 1}).score(spans_of(8))
    assert len(server.scored) <= 2


def test_a_reply_that_does_not_come_is_waited_for_until_the_deadline(server: CompletionsServer, tmp_path: Path):
    waiting = threading.Event()
    server.on_score = lambda number, result: (waiting.wait(3), result)[1] if number == 0 else result
    who = teacher(tmp_path, server.url, limits={"deadline_seconds": 0.5, "in_flight": 4}, failure_share=0.5)
    began = time.monotonic()
    who.score(spans_of(4))
    assert time.monotonic() - began < 2.5
    waiting.set()
    assert who.take_figures()["unscored_deadline"] == 1.0


def test_as_many_are_in_flight_as_are_allowed_the_longest_first(server: CompletionsServer, tmp_path: Path):
    server.on_score = lambda number, result: (time.sleep(0.05), result)[1]
    teacher(tmp_path, server.url, limits={"in_flight": 3}).score(spans_of(12))
    assert server.most_at_once == 3
    lengths = [len(ids) for ids in server.scored]
    assert lengths[0] == max(lengths)
    assert lengths[-1] == min(lengths)


def test_a_stage_that_is_asked_to_stop_does_so(server: CompletionsServer, tmp_path: Path):
    server.on_score = lambda number, result: (time.sleep(0.2), result)[1]
    who = teacher(tmp_path, server.url, stop=lambda: len(server.scored) > 2, limits={"in_flight": 1})
    with pytest.raises(Interrupted, match="what was scored is kept"):
        who.score(spans_of(30))
    assert len(server.scored) < 10


def test_a_key_is_sent_and_told_to_nobody(server: CompletionsServer, tmp_path: Path):
    key, environ = "sk-canary-0123456789", {"KEY": "sk-canary-0123456789", "URL": server.url}
    server.on_score = lambda number, result: Reply(400, json.dumps({"error": {"message": f"no {key}"}}).encode())
    who = teacher(tmp_path, "${env:URL}", api_key="${env:KEY}", environ=environ)
    with pytest.raises(TeacherError) as told:
        who.score(spans_of(2))
    assert server.keys == {f"Bearer {key}"}
    assert key not in str(told.value)
    assert "not shown" in str(told.value)
    with pytest.raises(TeacherError, match="URL is not set"):
        teacher(tmp_path, "${env:URL}").score(spans_of(1, 20))
    beyond = {"environ": {"URL": "http://192.0.2.1:8000"}}
    with pytest.raises(TeacherError, match=r"teachers\.big\.url: .*unencrypted: yes"):
        teacher(tmp_path, "${env:URL}", **beyond).score(spans_of(1, 20))


# --- what is kept


def test_what_was_scored_is_kept_over_one_checkpoint(server: CompletionsServer, tmp_path: Path):
    first = teacher(tmp_path, server.url)
    said, listed = numbers(first.score(spans_of(3))), first.lists(spans_of(2), 3)
    again = teacher(tmp_path, server.url)
    assert numbers(again.score(spans_of(3))) == said
    for one, other in zip(again.lists(spans_of(2), 3), listed, strict=True):
        assert one is not None
        assert other is not None
        assert one.ids_NK.tolist() == other.ids_NK.tolist()
        assert one.logprobs_NK.tolist() == other.logprobs_NK.tolist()
    assert len(server.scored) == 5
    again.settle()
    again.score(spans_of(3, 10))
    resumed = teacher(tmp_path, server.url)  # killed before the checkpoint was there
    assert numbers(resumed.score(spans_of(3))) == said
    resumed.score(spans_of(3, 10))
    assert len(server.scored) == 8
    resumed.settle()
    resumed.settle()
    assert numbers(resumed.score(spans_of(3, 10))) != said
    assert len(server.scored) == 8
    assert numbers(resumed.score(spans_of(3))) == said
    assert len(server.scored) == 11


def test_a_torn_line_is_asked_anew_and_a_damaged_one_is_told(server: CompletionsServer, tmp_path: Path):
    teacher(tmp_path, server.url, limits={"in_flight": 1}).score(spans_of(3))
    path = tmp_path / "scores" / "now.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    teacher(tmp_path, server.url).score(spans_of(3))
    assert len(server.scored) == 4
    path.write_bytes(whole[:40].replace(b'"key"', b'"kez"') + b"\n" + whole)
    with pytest.raises(StateError, match="damaged record"):
        KeptScores(tmp_path / "scores")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"choices": []}', b'{"choices": [{"prompt_logprobs": [3]}]}'])
def test_anything_else_is_no_answer(content: bytes):
    with pytest.raises(UnusableError):
        read(content, Question((1, 2), (1,), 0), 4)


def test_the_rows_of_a_policy_of_the_same_tokens_need_nobody_between(server: CompletionsServer, tmp_path: Path):
    asking = teacher(tmp_path, server.url)
    its = (teacher_of(POLICY).tokenizer, teacher_of(POLICY).frame)
    assert in_policy_tokens(asking, its, POLICY, Alignment(), over="top_k") is asking
    rows, trajectories = rows_of(2)
    for row in rows:
        row.teacher_weights = [1.0]
    ask(rows, [asking], trajectories)
    assert all(row.scores and math.isfinite(row.scores[0].logprobs[row.mask.index(True)]) for row in rows)
