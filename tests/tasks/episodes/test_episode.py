"""Episodes: statuses, sources, malformed calls, failing worlds, and what a run owes (KP-ROLL-01, 04, 05; KP-TOK-01, 06)."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from specs.errors import DataError, Interrupted, ProgramError, RolloutError
from specs.records import Observation, Source
from specs.verifiers import ToolCalls
from tasks.episodes.driver import identical_completions, run_episodes, watch_episode
from tasks.episodes.episode import Episode, EpisodeSetting
from tasks.episodes.local import LocalSampler
from tasks.episodes.render import render_demonstration
from tasks.evidence.verifiers import verifier_for
from tasks.protocols import Completion, SamplingSettings
from tests.tasks.episodes.counter_world import (
    AGENT,
    TOOLS,
    CounterEnvironment,
    ScriptedSampler,
    counter_policy,
    demonstration,
    problem,
)

POLICY = counter_policy()
ADD, END = '{"tool":"add","n":2}', '{"tool":"finish","answer":"2"}'
SETTINGS = SamplingSettings(1.0, 12, POLICY.template.stop_ids)


def script(*texts: str | None, broken: str | None = None, problems: int = 1, **more):
    sampler = ScriptedSampler(POLICY.template, list(texts))
    environment = CounterEnvironment(broken)
    found = run_episodes(
        sampler,
        AGENT,
        POLICY.template,
        {"counter": environment},
        [problem(i) for i in range(problems)],
        settings=SETTINGS,
        **more,
    )
    return found, environment, sampler


@pytest.mark.parametrize(
    ("texts", "status", "turns"),
    [
        ((ADD, END), "finished", 2),
        ((ADD, None), "truncated", 2),
        ((ADD,), "turn_limit", 4),
        (("{", "3", '{"tool":"nope"}', END), "finished", 4),
    ],
)
def test_statuses(texts, status, turns):
    (t,), environment, _ = script(*texts)
    assert (t.status, len(t.turns)) == (status, turns)
    assert environment.opened[0].closed == 1
    assert t.final_state == {"count": environment.opened[0].count}
    assert (t.answer == "2") == (status == "finished")


def test_a_call_in_a_fence_is_not_carried_out_and_no_verifier_counts_it():
    fenced = f"```json\n{ADD}\n```"
    (t,), environment, _ = script(fenced, END)
    assert environment.opened[0].count == 0
    assert t.turns[0].observation == Observation({"error": "malformed_json"}, is_error=True)
    calls = [{"name": "add", "arguments": {"n": [2]}}, {"name": "finish", "arguments": {"answer": ["2"]}}]
    wanted = replace(problem(0), expected={"calls": calls})
    verifier = verifier_for("calls", ToolCalls(kind="tool_calls"))
    assert verifier.verify(t, wanted).evidence["reason"] == "missing_call"
    (same,), _, _ = script(ADD, END)
    assert verifier.verify(same, wanted).passed


def test_a_cut_completion_is_never_an_answer():
    (t,), environment, _ = script(None)
    assert t.status == "truncated"
    assert (t.turns[0].finish, t.turns[0].call, t.turns[0].observation) == ("length", None, None)
    assert environment.opened[0].count == 0
    assert t.policy_tokens == t.turns[0].end - t.turns[0].start > 0


def test_a_malformed_call_becomes_a_tool_error_turn_and_the_episode_goes_on():
    (t,), environment, _ = script('{"tool":"add","n":"two"}', ADD, END)
    turn = t.turns[0]
    assert turn.call is not None
    assert turn.observation is not None
    assert (turn.call.error, turn.call.name, turn.observation.is_error) == ("wrong_type", "add", True)
    assert turn.observation.data == {"error": "wrong_type"}
    assert turn.text == POLICY.tokenizer.decode(t.ids[turn.start : turn.end - 1])
    assert (t.status, environment.opened[0].count) == ("finished", 2)


def test_every_token_has_one_source_and_only_the_policys_have_logprobs():
    (t,), _, _ = script(ADD, END)
    assert len(t.ids) == len(t.sources) == len(t.logprobs)
    policy = [i for turn in t.turns for i in range(turn.start, turn.end)]
    assert [i for i, s in enumerate(t.sources) if s == Source.POLICY] == policy
    assert {t.logprobs[i] for i in policy} == {-0.5}
    assert all(p == 0.0 for i, p in enumerate(t.logprobs) if i not in set(policy))
    assert set(t.sources) == {int(s) for s in Source}
    assert t.ids[t.turns[0].end - 1] in POLICY.template.stop_ids
    assert t.policy_versions == [("script", len(policy))]
    assert t.policy_tokens == len(policy)


def test_each_prompt_extends_the_one_before_and_nothing_is_encoded_again():
    (t,), _, sampler = script(ADD, "{", END)
    contexts = [ids for turn in sampler.requests for _, ids, _ in turn]
    assert len(contexts) == 3
    for before, after in pairwise(contexts):
        assert after[: len(before)] == before
    assert t.ids[: len(contexts[-1])] == contexts[-1]
    assert len({seed for turn in sampler.requests for _, _, seed in turn}) == 3


def test_ids_stay_as_sampled_where_the_encoder_prefers_others():
    shared = EpisodeSetting(AGENT, POLICY.template, POLICY.tokenizer, SETTINGS, 96, 0, "")
    episode = Episode(problem(1), 0, 0, CounterEnvironment(), shared)
    odd = [i for b in ADD.encode() for i in POLICY.tokenizer.encode(chr(b))]
    assert odd != POLICY.tokenizer.encode(ADD)
    ids = [*odd, *POLICY.template.stop_ids]
    episode.advance(Completion(ids, [-0.1 * k for k in range(len(ids))], "stop", "v"))
    turn = episode.record.turns[0]
    assert episode.record.ids[turn.start : turn.end] == ids
    assert (turn.text, turn.observation.data if turn.observation else None) == (ADD, {"count": 2})


def test_a_completion_that_ends_inside_a_character_keeps_its_bytes_and_is_flagged():
    shared = EpisodeSetting(AGENT, POLICY.template, POLICY.tokenizer, SETTINGS, 96, 0, "")
    episode = Episode(problem(1), 0, 0, CounterEnvironment(), shared)
    ids = [i for i in range(POLICY.tokenizer.size) if POLICY.tokenizer.token_bytes(i) == b"\xf0"]
    episode.advance(Completion(ids, [-1.0], "length", "v"))
    assert episode.request is None
    t = episode.trajectory()
    assert t.ids[-1:] == ids
    assert (t.status, "ends_inside_character" in t.tags) == ("truncated", True)


def test_broken_completions_and_misuse_are_errors():
    shared = EpisodeSetting(AGENT, POLICY.template, POLICY.tokenizer, SETTINGS, 96, 0, "")
    episode = Episode(problem(1), 0, 0, CounterEnvironment(), shared)
    with pytest.raises(RolloutError, match="has not ended"):
        episode.trajectory()
    with pytest.raises(RolloutError, match="2 ids and 1 logprobs"):
        episode.advance(Completion([1, 2], [0.0], "stop", "v"))
    episode.abandon()
    with pytest.raises(RolloutError, match="that has ended"):
        episode.advance(Completion([1], [0.0], "stop", "v"))


@pytest.mark.parametrize("broken", ["open", "call", "state"])
def test_a_world_that_fails_is_infrastructure_and_the_others_go_on(broken):
    good, bad = CounterEnvironment(), CounterEnvironment(broken)
    sampler = ScriptedSampler(POLICY.template, [ADD, END])
    other = problem(1)
    other.environment = "broken"
    found = run_episodes(
        sampler, AGENT, POLICY.template, {"counter": good, "broken": bad}, [problem(0), other], settings=SETTINGS
    )
    assert [t.status for t in found] == ["finished", "infrastructure"]
    assert "counter_world.py" in str(found[1].error)
    assert all(w.closed == 1 for w in (*good.opened, *bad.opened))
    assert found[1].success is None


def test_an_episode_without_room_for_another_token_is_truncated():
    (t,), _, sampler = script('{"tool":"add","n":2,"note":"' + "no " * 60 + '"}', END)
    assert t.status == "truncated"
    assert len(sampler.requests) == 1
    (t,), _, _ = script(END, broken=None)
    long = problem(1)
    long.text = "please " * 200
    (t,) = run_episodes(
        ScriptedSampler(POLICY.template, [END]), AGENT, POLICY.template, {"counter": CounterEnvironment()}, [long]
    )
    assert (t.status, t.turns) == ("truncated", [])


def sampled(in_flight: int, samples: int = 4, seed: int = 3):
    return run_episodes(
        LocalSampler(POLICY, "v"),
        AGENT,
        POLICY.template,
        {"counter": CounterEnvironment()},
        [problem(i) for i in range(5)],
        samples=samples,
        settings=SETTINGS,
        seed=seed,
        in_flight=in_flight,
        group_prefix="s/1/",
    )


def test_a_group_has_derived_seeds_and_any_batch_gives_the_same():
    whole, small = sampled(256), sampled(4)
    assert [t.ids for t in whole] == [t.ids for t in small]
    assert [t.id for t in whole] == [f"s/1/p{i}#{k}" for i in range(5) for k in range(4)]
    assert len({t.seed for t in whole}) == 20
    assert identical_completions(whole) == {f"s/1/p{i}": 0 for i in range(5)}
    assert [t.ids for t in sampled(256, seed=4)] != [t.ids for t in whole]
    assert [t.ids for t in sampled(256, samples=2)] == [t.ids for i, t in enumerate(whole) if i % 4 < 2]
    same = [whole[0], whole[0], whole[1]]
    assert identical_completions(same) == {"s/1/p0": 1}


def test_rollout_logprobs_are_the_trainers():
    for t in sampled(256):
        with torch.no_grad():
            logits = POLICY.model.head(POLICY.model.hidden(torch.tensor([t.ids])))[0]
        exact = logits[:-1].log_softmax(-1).gather(1, torch.tensor(t.ids[1:])[:, None])[:, 0]
        for turn in t.turns:
            torch.testing.assert_close(
                torch.tensor(t.logprobs[turn.start : turn.end]), exact[turn.start - 1 : turn.end - 1], atol=1e-4, rtol=0
            )


def test_a_demonstration_is_rendered_as_the_episode_it_would_be():
    d = demonstration(problem(7))
    rendered = render_demonstration(d, AGENT, POLICY.template, TOOLS)
    texts = [AGENT.write(call) for call, _ in d.turns]
    sampler = ScriptedSampler(POLICY.template, texts)
    (t,) = run_episodes(sampler, AGENT, POLICY.template, {"counter": CounterEnvironment()}, [problem(7)])
    assert (rendered.ids, rendered.sources) == (t.ids, t.sources)
    assert [(a.start, a.end, a.text) for a in rendered.turns] == [(a.start, a.end, a.text) for a in t.turns]
    assert (rendered.status, rendered.origin, rendered.answer) == ("finished", "demonstration/clerk", "7")
    d.turns = []
    with pytest.raises(DataError, match="has no turn"):
        render_demonstration(d, AGENT, POLICY.template, TOOLS)


def test_stopping_closes_every_world_and_progress_counts():
    told: list[tuple[int, int]] = []
    script(ADD, END, problems=3, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (3, 3)]
    environment = CounterEnvironment()
    asked = iter([False, True])
    with pytest.raises(Interrupted, match="0 of 1"):
        run_episodes(
            ScriptedSampler(POLICY.template, [ADD]),
            AGENT,
            POLICY.template,
            {"counter": environment},
            [problem(0)],
            stop=lambda: next(asked),
        )
    assert [w.closed for w in environment.opened] == [1]


def test_watching_one_episode_gives_the_same_trajectory():
    seen: list[int] = []
    watched = watch_episode(
        LocalSampler(POLICY, "v"),
        AGENT,
        POLICY.template,
        CounterEnvironment(),
        problem(2),
        SETTINGS,
        3,
        lambda t: seen.append(len(t.turns)),
    )
    assert watched.ids == next(t for t in sampled(256) if t.problem_id == "p2").ids
    assert seen == list(range(1, len(watched.turns) + 1))


def test_what_cannot_be_run_is_said_before_anything_runs():
    sampler = ScriptedSampler(POLICY.template, [END])
    environments = {"counter": CounterEnvironment()}
    with pytest.raises(DataError, match="same id twice"):
        run_episodes(sampler, AGENT, POLICY.template, environments, [problem(0), problem(0)])
    with pytest.raises(DataError, match="not declared"):
        run_episodes(sampler, AGENT, POLICY.template, {}, [problem(0)])
    sampler.tokenizer_digest = "other"
    with pytest.raises(ProgramError, match="serves tokenizer"):
        run_episodes(sampler, AGENT, POLICY.template, environments, [problem(0)])
