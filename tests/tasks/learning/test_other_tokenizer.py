"""Teachers with another tokenizer on trajectories with tool calls: scores, exact covers, refusals."""

import math

import numpy as np
import pytest
import torch

from specs.alignment import Alignment
from specs.errors import ProgramError, StateError
from specs.records import Source
from specs.teachers import ModelTeacher
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.opening import Scoring, open_token_teacher
from tasks.learning.other_tokenizer import OtherTokenizerTeacher
from tasks.policy.foreign import LoadedTeacher, load_teacher, read_teacher, save_teacher, teacher_of
from tasks.policy.store import LoadedPolicy, save_policy
from tasks.tokens.retelling import Reteller
from tests.tasks.learning.tiny import tiny_model
from tests.tasks.tokens.conversations import CALLS, conversation, plain, side, span, template

POLICY = template()
OWN = side("builtin/compact@1", POLICY)
OTHER = side("builtin/chatml@1", template("builtin/chatml@1", 320))


def model(tokenizer, seed=1, max_length=512):
    return tiny_model(seed, tokenizer.size, max_length)


def teacher(other=OTHER, own=OWN, max_length=512, **settings):
    align = Alignment.model_validate({"max_gap": 1e9} | settings)  # no teacher here was ever trained
    return OtherTokenizerTeacher(OpenTeacher("big", model(other[0], max_length=max_length)), own, other, align)


def direct(net, ids):
    """Return the logprob of each token but the first, by one plain pass."""
    with torch.no_grad():
        logits = net.head(net.hidden(torch.tensor([ids])))[0, :-1].double()
    return [math.nan, *logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()]


def test_its_own_tokens_get_what_the_teacher_says_of_each():
    trajectory = conversation(POLICY)
    found = teacher(OWN).score([span(trajectory)])[0]
    plain_scores = OpenTeacher("big", model(OWN[0])).score([span(trajectory)])[0]
    assert found.chunks is not None
    assert [c >= 0 for c in found.chunks] == [s == Source.POLICY for s in trajectory.sources]
    np.testing.assert_allclose(found.logprobs, plain_scores.logprobs, atol=1e-6)


def test_a_chunk_holds_the_sum_of_the_teachers_tokens_and_every_token_is_forwarded_once():
    trajectory = conversation(POLICY)
    asked = teacher()
    found = asked.score([span(trajectory)])[0]
    retold = Reteller(OWN, OTHER, Alignment()).tell(span(trajectory))
    scores = direct(model(OTHER[0]), retold.ids)
    for (first, last), (start, end) in zip(retold.chunks.policy_C2, retold.chunks.teacher_C2, strict=True):
        if max(last - first, end - start) > 32:
            assert all(math.isnan(x) for x in found.logprobs[first:last])
            continue
        assert found.logprobs[last - 1] == pytest.approx(sum(scores[start:end]), abs=1e-5)
        assert found.logprobs[first : last - 1] == [0.0] * (last - first - 1)
        assert found.chunks is not None
        assert len(set(found.chunks[first:last])) == 1
    figures = asked.take_figures()
    assert figures["alignment_coverage"] > 0.9
    assert figures["alignment_byte_span"] == 1.0
    assert figures["reverse_kl_per_byte"] != 0.0
    assert asked.take_figures()["alignment_coverage"] == 1.0  # nothing since


def test_many_trajectories_at_once_are_scored_as_each_alone():
    several = [conversation(POLICY, CALLS[:1]), conversation(POLICY), conversation(POLICY, CALLS[::-1])]
    together = teacher().score([span(t) for t in several])
    for one, trajectory in zip(together, several, strict=True):
        alone = teacher().score([span(trajectory)])[0]
        assert one.chunks == alone.chunks
        np.testing.assert_allclose(one.logprobs, alone.logprobs, atol=1e-5)


@pytest.mark.parametrize("kind", ["sentence_piece", "unigram", "word_piece"])
def test_teachers_of_other_kinds_score_tool_calls(kind):
    trajectory = conversation(POLICY, ['{"tool":"check_stock","product":"red lamp"}', "the customer of the order"])
    asked = teacher(plain(kind))
    found = asked.score([span(trajectory)])[0]
    figures = asked.take_figures()
    scored = [math.isfinite(x) for x in found.logprobs]
    assert sum(scored) / sum(span(trajectory).mask) == pytest.approx(figures["alignment_coverage"])
    assert figures["alignment_coverage"] > 0.6


def test_covers_are_exact_and_never_below_the_canonical_writing():
    trajectory = conversation(POLICY, ["blue view of"])
    canonical = teacher().score([span(trajectory)])[0]
    asked = teacher(score="covers", min_cover_mass=0.0, max_cover_passes=10_000)
    found = asked.score([span(trajectory)])[0]
    figures = asked.take_figures()
    assert figures["cover_passes"] > 0
    assert figures["cover_mass_left_out"] == 0.0
    retold = Reteller(OWN, OTHER, Alignment()).tell(span(trajectory))
    merged = 0
    for (first, last), (start, end) in zip(
        retold.chunks.policy_C2.tolist(), retold.chunks.teacher_C2.tolist(), strict=True
    ):
        if last - first == 1 and end - start == 1:
            assert found.logprobs[first] == canonical.logprobs[first]
            continue
        merged += 1
        text = OWN[0].bytes_of(trajectory.ids[first:last])
        expected = math.log(covers(model(OTHER[0]), OTHER[0].table, retold.ids[:start], text))
        assert sum(found.logprobs[first:last]) == pytest.approx(expected, abs=1e-5)
        assert sum(found.logprobs[first:last]) >= canonical.logprobs[last - 1] - 1e-9
        assert found.chunks is not None
        assert len(set(found.chunks[first:last])) == last - first
    assert merged


def covers(net, table, history, text):
    """Return P(what follows begins with `text`) by trying every token at every step."""
    with torch.no_grad():
        probabilities = net.head(net.hidden(torch.tensor([history])))[0, -1].double().softmax(-1).tolist()
    total = 0.0
    for token, piece in enumerate(table):
        if piece.startswith(text):
            total += probabilities[token]
        elif piece and text.startswith(piece):
            total += probabilities[token] * covers(net, table, [*history, token], text[len(piece) :])
    return total


def test_covers_without_passes_keep_the_canonical_scores():
    trajectory = conversation(POLICY)
    found = teacher(score="covers", min_cover_mass=0.0, max_cover_passes=0).score([span(trajectory)])[0]
    canonical = teacher().score([span(trajectory)])[0]
    assert sum(c != d for c, d in zip(found.chunks or [], canonical.chunks or [], strict=True)) < len(found.logprobs)
    asked = teacher(score="covers", min_cover_mass=0.05, max_cover_passes=8)
    asked.score([span(trajectory)])
    assert 0 <= asked.take_figures()["cover_passes"] <= 8


def test_a_conversation_too_long_for_the_teacher_is_silent_and_counted():
    trajectory = conversation(POLICY)
    asked = teacher(max_length=16)
    found = asked.score([span(trajectory)])[0]
    assert all(math.isnan(x) for x in found.logprobs)
    figures = asked.take_figures()
    assert figures["alignment_coverage"] == 0.0
    assert figures["alignment_dropped_teacher_logprob_missing"] > 0.9


def loaded(made, tokenizer, seed=0):
    net = model(tokenizer, seed)
    return LoadedPolicy(net, made.tokenizer, made, net.config)


def test_probes_decide_whose_tokens_they_are():
    policy = loaded(POLICY, OWN[0])
    same = open_token_teacher("self", teacher_of(policy), policy, Alignment(), scoring=Scoring(), over="full")
    assert isinstance(same, OpenTeacher)
    other = LoadedTeacher(model(OTHER[0]), *OTHER, model(OTHER[0]).config)
    found = open_token_teacher("big", other, policy, Alignment(), scoring=Scoring(), over="sampled")
    assert isinstance(found, OtherTokenizerTeacher)
    assert found.name == "big"
    with pytest.raises(ProgramError, match=r"teachers\.big.*special tokens differ.*kind: sampled"):
        open_token_teacher("big", other, policy, Alignment(), scoring=Scoring(), over="full")


def test_a_teachers_folder_comes_back_the_same_and_damage_is_named(tmp_path):
    made = plain("sentence_piece")
    net = model(made[0])
    spec = ModelTeacher(kind="model", model=str(tmp_path / "one"), template="builtin/plain@1", max_length=512)
    digest = save_teacher(LoadedTeacher(net, *made, net.config), tmp_path / "one")
    read = read_teacher(spec, "builtin/compact@1")
    assert save_teacher(read, tmp_path / "two") == digest
    again = load_teacher(tmp_path / "two")
    trajectory = conversation(POLICY, CALLS[:1])
    first, second = (
        open_token_teacher("t", t, loaded(POLICY, OWN[0]), Alignment(), scoring=Scoring(), over="sampled").score(
            [span(trajectory)]
        )[0]
        for t in (read, again)
    )
    np.testing.assert_array_equal(first.logprobs, second.logprobs)
    with pytest.raises(ProgramError, match="expected abc"):
        read_teacher(spec.model_copy(update={"revision": "abc"}), "builtin/compact@1")
    with pytest.raises(ProgramError, match="no folder"):
        read_teacher(spec.model_copy(update={"model": str(tmp_path / "none")}), "builtin/compact@1")
    with pytest.raises(ProgramError, match="builtin/plain@1 needs none"):
        read_teacher(spec.model_copy(update={"template": "policy"}), "builtin/compact@1")
    (tmp_path / "two" / "tokenizer.json").write_text("{}")
    with pytest.raises(StateError, match=r"tokenizer\.json: damaged"):
        load_teacher(tmp_path / "two")
    save_policy(loaded(POLICY, OWN[0]), tmp_path / "policy")
    assert load_teacher(tmp_path / "policy").tokenizer.digest == OWN[0].digest
