"""An agent that is a program: what it inserts never trains, what goes wrong is said, and what it may ask is bounded."""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from specs.agents import ExternalAgent, ToolLoop
from specs.commands import Limits
from specs.errors import Interrupted
from specs.records import Source
from tasks.episodes.agents import agent_for
from tasks.episodes.driver import run_episodes, watch_episode
from tasks.episodes.local import LocalSampler
from tasks.episodes.replies import Replies
from tasks.episodes.shards import read_shards, write_shards
from tasks.learning.rows import rows_from
from tasks.processes import pid_is_free
from tasks.protocols import Completion, SamplingSettings
from tests.tasks.episodes.counter_world import CounterEnvironment, ScriptedSampler, counter_policy, problem

AGENT = Path(__file__).parents[2] / "examples" / "lamp_agent.py"
POLICY = counter_policy(max_length=256)
ADD, FINISH = '{"tool":"add","n":1}', '{"tool":"finish","answer":"1"}'


def external(*more: str, script: Path = AGENT, seconds: float = 20.0, **settings):
    command = [sys.executable, str(script), *more]
    return agent_for(
        ExternalAgent(kind="external", command=command, timeout_seconds=seconds, max_new_tokens=12, **settings)
    )


def scripted(*texts):
    sampler = ScriptedSampler(POLICY.template, list(texts))
    sampler.max_length = 256
    return sampler


def in_turn(*texts):
    """Return a sampler that says one text after the other, whatever conversation asks."""
    sampler = scripted(*texts)
    said = iter(texts)
    ids = POLICY.template.completion

    def generate(requests):
        told = [ids(next(said)) for _ in requests]
        return [Completion(t, [-0.5] * len(t), "stop", "script") for t in told]

    sampler.generate = generate
    return sampler


def run(sampler, agent, count=1, environment=None, **settings):
    world = environment or CounterEnvironment()
    return run_episodes(
        sampler, agent, POLICY.template, {"counter": world}, [problem(i + 1) for i in range(count)], **settings
    )


def own(folder: Path, body: str) -> Path:
    """Write an agent of a few lines: `post(path, body)` and `problem` are there."""
    script = folder / "agent.py"
    script.write_text(
        "import json, os, sys, urllib.request, urllib.error\n"
        "problem = json.load(sys.stdin)\n"
        "def post(path, body, key=os.environ['OPENAI_API_KEY']):\n"
        "    request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + path, json.dumps(body).encode(),\n"
        "        {'Authorization': 'Bearer ' + key})\n"
        "    try:\n        return json.load(urllib.request.urlopen(request, timeout=30))\n"
        "    except urllib.error.HTTPError as e:\n        return {'status': e.code, **json.load(e)}\n"
        "def chat(*messages, **more):\n"
        "    return post('/chat/completions', {'model': 'policy', 'messages': list(messages), **more})\n"
        "user = {'role': 'user', 'content': problem['text']}\n" + body
    )
    return script


def test_it_samples_what_a_tool_loop_samples_and_calls_what_it_calls():
    """With the same policy and greedy tokens, an agent that does the same leaves the same ids, turns and end."""
    texts = [ADD, FINISH]
    ours = run(scripted(*texts), agent_for(ToolLoop(max_new_tokens=12)), count=3)
    theirs = run(scripted(*texts), external(), count=3)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.ids, a.sources, a.logprobs, a.seed) == (b.ids, b.sources, b.logprobs, b.seed)
        assert (a.status, a.final_state, a.answer) == (b.status, b.final_state, b.answer)
        assert [(t.start, t.end, t.call.name, t.observation) for t in a.turns if t.call] == [
            (t.start, t.end, t.call.name, t.observation) for t in b.turns if t.call
        ]
        assert b.agent == "external/flat@2"
        assert b.segments == [0]


def test_only_what_was_sampled_trains():
    found = run(scripted(ADD, FINISH), external())[0]
    rows, _ = rows_from([found], max_length=256, behaviour=True)
    trained = [i for i, m in zip(rows[0].ids, rows[0].mask, strict=True) if m]
    assert POLICY.tokenizer.decode(trained) == f"{ADD}<|end|>{FINISH}<|end|>"
    assert found.policy_tokens == len(trained)


def test_continuing_ids_leaves_one_context_and_text_is_refused_with_what_to_do(tmp_path):
    found = run(scripted(ADD, FINISH), external("--style", "ids"))[0]
    assert (found.status, found.answer, found.segments, found.tags) == ("finished", "1", [0], [])
    assert [t.call.name for t in found.turns if t.call] == ["add", "finish"]
    broken = run(scripted(ADD), external("--broken", "text"))[0]
    assert broken.status == "infrastructure"
    assert "400" in (broken.error or "")
    assert "found text, expected a list of token ids" in (broken.error or "")
    assert "/v1/tokenize" in (broken.error or "")


def test_several_conversations_are_several_contexts():
    found = run(scripted(ADD, ADD, FINISH), external("--style", "plan"))[0]
    assert len(found.segments) == 2
    assert "token_drift" not in found.tags
    rows, report = rows_from([found], max_length=256, behaviour=True)
    assert [r.id for r in rows] == [f"{found.id}/0", f"{found.id}/1"]
    assert report.contexts == 1
    assert all(not r.mask[0] for r in rows)
    texts = [POLICY.tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]) for r in rows]
    assert texts[0] == f"{ADD}<|end|>"
    assert POLICY.tokenizer.decode(rows[0].ids).startswith("<|user|>Plan: Count")
    assert POLICY.tokenizer.decode(rows[1].ids).startswith("<|user|>Count")
    for turn in found.turns:
        assert POLICY.tokenizer.decode(found.ids[turn.start : turn.end]).removesuffix("<|end|>") == turn.text


@pytest.mark.parametrize(("rule", "rows"), [("split", 2), ("drop", 0)])
def test_a_prompt_that_changes_what_was_sampled_is_drift(rule, rows):
    found = run(in_turn(ADD, FINISH), external("--style", "forgetful", token_drift=rule))[0]
    assert "token_drift" in found.tags
    assert found.sampling["drifted"] == 1
    assert len(found.segments) == 2
    made, report = rows_from([found], max_length=256, behaviour=True)
    assert len(made) == rows
    assert report.dropped == ({} if rows else {"token_drift": 1})
    trained = [POLICY.tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]) for r in made]
    assert all(text.count("<|end|>") == 1 for text in trained), (
        "what was sampled before is read and does not train twice"
    )


def test_requests_of_many_episodes_are_sampled_together_and_seeds_do_not_depend_on_it():
    policy = counter_policy(seed=3, max_length=128)
    agent = external(script=AGENT)

    def roll(in_flight):
        sampler = LocalSampler(policy, "v1")
        batches = []
        inner = sampler.generate
        sampler.generate = lambda requests: batches.append(len(requests)) or inner(requests)
        world = CounterEnvironment()
        found = run_episodes(
            sampler, agent, policy.template, {"counter": world}, [problem(i) for i in range(6)], samples=2,
            settings=SamplingSettings(1.0, 12), seed=5, in_flight=in_flight,
        )  # fmt: skip
        return [t.ids for t in found], batches

    together, batches = roll(8)
    alone, single = roll(1)
    assert together == alone
    assert max(batches) > 1
    assert max(single) == 1
    assert len({tuple(ids) for ids in together}) > 6, "samples of a problem differ"


@pytest.mark.parametrize(
    ("how", "seconds", "told"),
    [
        ("crash", 20.0, "agent: ended early (exit status 1); stderr: I do not feel well"),
        ("hang", 1.0, "agent: not done within agent.timeout_seconds (1 s)"),
    ],
)
def test_an_agent_that_fails_is_infrastructure_with_evidence(how, seconds, told):
    world = CounterEnvironment()
    found = run(scripted(ADD), external("--broken", how, seconds=seconds), environment=world)[0]
    assert found.status == "infrastructure"
    assert told in (found.error or "")
    assert found.final_state is None
    assert [w.closed for w in world.opened] == [1]


def test_the_time_for_which_nobody_hears_a_program_is_not_its_own(tmp_path):
    script = own(tmp_path, "import time\ntime.sleep(0.5 * problem['sample'])\nassert 'choices' in chat(user)\n")
    held = []

    def busy(trajectory):
        if not held:
            time.sleep(4.0)
        held.append(trajectory.status)

    found = run(scripted(FINISH), external(script=script, seconds=2.0), samples=2, finished=busy)
    assert [t.status for t in found] == held == ["finished", "finished"], [t.error for t in found]


def test_a_world_that_fails_is_infrastructure(tmp_path):
    for broken in ("open", "call", "state"):
        found = run(scripted(ADD, FINISH), external(), environment=CounterEnvironment(broken))[0]
        assert (found.status, found.final_state) == ("infrastructure", None), broken


def test_its_requests_and_calls_are_bounded(tmp_path):
    found = run(scripted(ADD), external("--broken", "endless", max_requests=3))[0]
    assert (found.status, len(found.turns), found.error) == ("turn_limit", 3, None)
    assert found.final_state == {"count": 0}
    script = own(
        tmp_path,
        "for i in range(9): told = post('/tools/call', {'name': 'add', 'arguments': {'n': 1}})\nassert told['status'] == 403, told\n",
    )
    found = run(scripted(ADD), external(script=script))[0]
    assert (found.status, found.final_state) == ("turn_limit", {"count": 4})
    assert [(t.start, t.end) for t in found.turns] == [(0, 0)] * 4
    long = own(
        tmp_path,
        "told = chat({'role': 'user', 'content': 'x ' * 999})\nassert told['error']['code'] == 'context_length_exceeded', told\n",
    )
    found = run(scripted(ADD), external(script=long))[0]
    assert (found.status, found.ids) == ("truncated", [])
    assert rows_from([found], max_length=256, truncated="score")[1].dropped == {"no_supervised_token": 1}


@pytest.mark.parametrize("ask", ["post('/tools/call', {'name': 'add', 'arguments': {'n': 1}})", "chat(user)"])
def test_an_agent_that_hangs_after_it_was_told_a_limit_ended_at_that_limit(ask, tmp_path):
    """What a policy writes may keep an agent from its end; it had all that it was given."""
    script = own(
        tmp_path, f"for i in range(9): told = {ask}\nassert told['status'] == 403, told\nimport time; time.sleep(60)\n"
    )
    found = run(scripted(ADD), external(script=script, seconds=2.0, max_requests=4))[0]
    assert (found.status, found.error, len(found.turns)) == ("turn_limit", None, 4)


def test_what_it_prints_is_bounded(tmp_path):
    script = own(tmp_path, "while True: print('x' * 100000)\n")
    found = run(scripted(ADD), external(script=script, limits=Limits(output_mb=1)))[0]
    assert "wrote more than agent.limits.output_mb (1)" in (found.error or "")


def test_it_knows_nothing_of_ours(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-canary")
    found = run(scripted(ADD), external("--broken", "look"))[0]
    assert "exit status 3" in (found.error or "")
    assert "TEACHER_KEY" not in (found.error or "")
    assert "OPENAI_API_KEY" in (found.error or "")


REFUSED = [
    ("'/chat/completions', {'model': 'gpt-4', 'messages': [user]}", 404, "expected 'policy'"),
    (
        "'/chat/completions', {'model': 'policy', 'messages': [user], 'temperature': 0.3}",
        400,
        "it is the program's (1)",
    ),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'stream': True}", 400, "stream: found True"),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'n': 4}", 400, "n: found 4, expected 1"),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'mirostat': 2}", 400, "not known here"),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'max_tokens': 0}", 400, "at least 1"),
    ("'/chat/completions', {'model': 'policy', 'messages': []}", 400, "at least one message"),
    ("'/chat/completions', {'model': 'policy', 'messages': [{'role': 'robot'}]}", 400, "expected an object with role"),
    (
        "'/chat/completions', {'model': 'policy', 'messages': [{'role': 'user', 'content': [{'type': 'image_url'}]}]}",
        400,
        "parts of type text",
    ),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'tools': [{'name': 'x'}]}", 400, "tools[0]"),
    ("'/completions', {'model': 'policy', 'prompt': ['text']}", 400, "expected a list of token ids"),
    ("'/completions', {'model': 'policy', 'prompt': [10**9]}", 400, "token ids from 0 to"),
    ("'/completions', {'model': 'policy', 'prompt': []}", 400, "at least one"),
    ("'/tools/call', {'tool': 'add'}", 400, "expected {"),
    ("'/elsewhere', {}", 404, "there are /v1/chat/completions"),
    ("'/tokenize', {'txt': 1}", 400, "expected {"),
    ("'/detokenize', {'ids': 'x'}", 400, "token ids"),
    ("'/chat/completions', {'model': 'policy', 'messages': [user]}, 'wrong'", 401, "unknown key"),
    ("'/chat/completions', [1]", 400, "no JSON object"),
    ("'/tokenize', {'text': '\\ud800'}", 400, "a lone surrogate (\\ud800)"),
    (
        "'/chat/completions', {'model': 'policy', 'messages': [{'role': 'user', 'content': '\\udfff'}]}",
        400,
        "surrogate",
    ),
    ("'/chat/completions', {'model': 'policy', 'messages': [user], 'temperature': float('nan')}", 400, "NaN is not"),
    *(
        (f"'/chat/completions', {{'model': 'policy', 'messages': [user], 'tools': [tool({schema})]}}", 400, told)
        for schema, told in (
            ({"required": 3}, "tools: tool x, required: found 3, expected a list of names"),
            ({"properties": [1]}, "properties: found [1], expected an object"),
            ({"properties": {"n": {"enum": 1}}}, "argument n, enum: found 1"),
            ({"properties": {"n": {"minimum": "0"}}}, "argument n, minimum: found 0"),
            ({"properties": {"n": {"type": {}}}}, "found type {}"),
            ({"properties": {"n": 1}}, "expected a JSON schema object"),
        )
    ),
]


def test_what_cannot_be_honoured_is_refused_with_what_to_do(tmp_path):
    lines = [
        f"told = post({ask}); assert told['status'] == {code} and {text!r} in told['error']['message'], told"
        for ask, code, text in REFUSED
    ]
    tool = "tool = lambda schema: {'type': 'function', 'function': {'name': 'x', 'parameters': schema}}"
    found = run(scripted(ADD), external(script=own(tmp_path, "\n".join([tool, *lines]))))[0]
    assert (found.status, found.error, found.turns) == ("finished", None, [])


@pytest.mark.parametrize(
    ("broken", "ask"),
    [
        ("encode", "'/tokenize', {'text': 'boom'}"),
        ("decode", "'/detokenize', {'ids': [1]}"),
        ("request", "'/chat/completions', {'model': 'policy', 'messages': [user]}"),
        ("take", "'/chat/completions', {'model': 'policy', 'messages': [user]}"),
    ],
)
def test_a_request_that_fails_ends_its_episode_and_no_other(broken, ask, tmp_path, monkeypatch):
    def boom(*_):
        raise TypeError("boom")

    script = own(
        tmp_path,
        f"told = post({ask}) if problem['id'] == 'p1' else {{'status': 500}}\nassert told['status'] == 500, told\n",
    )
    if broken in ("encode", "decode"):  # as a tokenizer that fails over one text would
        kept = getattr(POLICY.tokenizer, broken)
        failing = lambda asked: boom() if asked in ("boom", [1]) else kept(asked)  # noqa: E731
        monkeypatch.setattr(type(POLICY.tokenizer), broken, lambda _, asked: failing(asked))
    else:
        monkeypatch.setattr(Replies, broken, boom)
    lost, other = run(scripted(ADD), external(script=script), count=2)
    assert (lost.problem_id, lost.status) == ("p1", "infrastructure")
    assert "gateway: TypeError: boom" in (lost.error or "")
    assert (other.status, other.error) == ("finished", None)


def test_calls_that_do_not_fit_are_answered_and_counted(tmp_path):
    script = own(tmp_path, (
        "told = [post('/tools/call', c)['data'] for c in ({'name': 'add', 'arguments': '{'}, {'name': 'fly'},\n"
        "    {'name': 'add', 'arguments': {'n': 'x'}}, {'name': 'add', 'arguments': '{\"n\": 2}'})]\n"
        "assert told == [{'error': 'malformed_json'}, {'error': 'unknown_tool'}, {'error': 'wrong_type'}, {'count': 2}], told\n"
    ))  # fmt: skip
    found = run(scripted(ADD), external(script=script))[0]
    assert [t.call.error for t in found.turns if t.call] == ["malformed_json", "unknown_tool", "wrong_type", None]
    assert found.status == "finished"


def test_arguments_that_no_file_could_hold_are_malformed(tmp_path):
    script = own(tmp_path, (
        "bad = ({'n': float('nan')}, {'n': float('inf')}, {'n': '\\ud800'}, {'\\ud800': 1}, '{\"n\": NaN}', '{\"n\": 1e999}',\n"
        "    '{\"n\": \"\\\\ud800\"}', '\\ud800')\n"
        "told = [post('/tools/call', {'name': 'add', 'arguments': b}) for b in bad[:problem['max_turns'] - 1]]\n"
        "told.append(post('/tools/call', {'name': '\\ud800', 'arguments': {}}))\n"
        "assert [t['data']['error'] for t in told] == ['malformed_json'] * (len(told) - 1) + ['unknown_tool'], told\n"
    ))  # fmt: skip
    world = CounterEnvironment()
    world.max_turns = 9
    found = run(scripted(ADD), external(script=script), environment=world)[0]
    assert (found.status, found.error, len(found.turns)) == ("finished", None, 9)
    assert write_shards(tmp_path / "shards", [found]) == 1
    assert [t.call for t in next(read_shards(tmp_path / "shards")).turns] == [t.call for t in found.turns]


def test_text_becomes_ids_and_comes_back(tmp_path):
    script = own(tmp_path, (
        "ids = post('/tokenize', {'text': 'Count ü'})['ids']\n"
        "assert post('/detokenize', {'ids': ids}) == {'text': 'Count ü'}\n"
        "models = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/models', headers={'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']})\n"
        "assert json.load(urllib.request.urlopen(models))['data'][0]['id'] == 'policy'\n"
        "assert problem['tools'][0]['function']['name'] == 'add' and 'expected' not in problem and 'world' not in problem\n"
    ))  # fmt: skip
    assert run(scripted(ADD), external(script=script))[0].error is None


def test_a_cut_reply_says_so_and_is_closed_before_what_follows(tmp_path):
    script = own(tmp_path, (
        "first = chat(user, max_tokens=3)['choices'][0]\n"
        "assert first['finish_reason'] == 'length', first\n"
        "chat(user, first['message'], {'role': 'user', 'content': 'go on'})\n"
    ))  # fmt: skip
    found = run(scripted(None, FINISH), external(script=script))[0]
    assert found.segments == [0]
    text = POLICY.tokenizer.decode(found.ids)
    assert '{"tool":"add"<|end|><|user|>go on<|end|><|call|>' in text
    assert [t.finish for t in found.turns] == ["length", "stop"]


def test_a_body_without_a_bound_is_not_read():
    from tasks.episodes.gateway import MAX_BODY, Gateway

    with Gateway(external(), 300, 1.0) as gateway:
        for headers, code in (({"Content-Length": str(MAX_BODY + 1)}, 413), ({"Transfer-Encoding": "chunked"}, 411)):
            request = urllib.request.Request(f"{gateway.url}/completions", method="POST", headers=headers)
            with pytest.raises(urllib.error.HTTPError) as e:
                urllib.request.urlopen(request, timeout=5)
            assert e.value.code == code
            e.value.close()


def test_a_stop_ends_every_program(tmp_path):
    pids = tmp_path / "pids"
    script = own(tmp_path, f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\nimport time; time.sleep(60)\n")
    world = CounterEnvironment()

    def stop():
        return pids.exists() and pids.read_text().count("\n") == 3

    with pytest.raises(Interrupted, match="stopped after 0 of 3 episodes"):
        run(scripted(ADD), external(script=script, seconds=60.0), count=3, environment=world, stop=stop)
    until = time.monotonic() + 5
    left = [int(p) for p in pids.read_text().split()]
    while time.monotonic() < until and not all(map(pid_is_free, left)):
        time.sleep(0.02)
    assert all(map(pid_is_free, left))
    assert [w.closed for w in world.opened] == [1, 1, 1]
    assert not [t for t in threading.enumerate() if t.name == "gateway"]


def test_one_episode_can_be_watched():
    seen = []
    record = watch_episode(
        scripted(ADD, FINISH), external(), POLICY.template, CounterEnvironment(), problem(1),
        SamplingSettings(0.0, 12), 0, lambda t: seen.append(len(t.turns)),
    )  # fmt: skip
    assert (record.status, seen) == ("finished", [2])
    assert json.dumps(record.sampling)
    assert Source.POLICY in record.sources
    assert os.environ.get("OPENAI_API_KEY") is None
