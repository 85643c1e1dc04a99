"""Distillation across tokenizers over two calls: what is right to say in the second stands in what the first one brought."""

import copy
import math
import random
from statistics import fmean

import pytest

from specs.agents import ToolLoop
from specs.alignment import Alignment
from specs.distillation import OPD, SampledTokens
from specs.optimizer import Optimizer
from specs.policy import BPETokenizer, ScratchPolicy
from specs.records import Demonstration, Observation, Source, ToolCall, Verdict
from specs.reward import Reward
from specs.supervised import SFT
from tasks.episodes.agents import agent_for
from tasks.episodes.local import LocalSampler
from tasks.episodes.render import render_demonstration
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.opening import Scoring, open_token_teacher
from tasks.learning.rows import rows_from
from tasks.loops.collect import Arena, Draw, rollouts
from tasks.loops.distill import Distilling, train_opd
from tasks.loops.order import ProblemOrder
from tasks.loops.token_lessons import Panel, lesson
from tasks.policy.foreign import teacher_of
from tasks.policy.initial import from_scratch
from tasks.protocols import ToolSchema
from tasks.tokens.template import system_text
from tests.tasks.loops.toy import LETTERS, TOOL, ToyEnvironment, ToyWorld, problem

LOOK = ToolSchema("look", "Find out which letter.", {"type": "object", "properties": {}})
TOOLS, AGENT = [LOOK, TOOL], agent_for(ToolLoop(max_new_tokens=12))
UNSEEN = [problem(i) for i in range(200, 232)]
SPEC = OPD(
    type="opd", over=SampledTokens(kind="sampled"), group_size=2, problems_per_step=32, steps=10,
    optimizer=Optimizer(kind="muon", learning_rate=5e-3),
)  # fmt: skip


def wanted(of):
    """The problem's text says nothing of it: it has to be looked up."""
    return random.Random(of.id).choice(LETTERS)


class World(ToyWorld):
    def __init__(self, letter):
        super().__init__()
        self.letter, self.looked = letter, False

    def call(self, call):
        if call.name == "look":
            self.looked = True
            return Observation({"letter": self.letter})
        return super().call(call)

    def final_state(self):
        return {"right": self.looked and self.said == self.letter}


class Looking(ToyEnvironment):
    version, max_turns = "looking@1", 3

    def tools(self, problem=None):
        return TOOLS

    def open(self, problem, seed):
        return World(wanted(problem))


class Right:
    version = "right@1"

    def verify(self, trajectory, problem):
        passed = bool((trajectory.final_state or {}).get("right"))
        return Verdict("right", self.version, float(passed), passed)


def rows_of(policy, problems, say):
    """Rows in which the letter is looked up and `say(problem)` is said."""
    made = []
    for p in problems:
        turns = [
            (ToolCall("look", {}, ""), Observation({"letter": wanted(p)})),
            (ToolCall("say", {"letter": say(p)}, ""), Observation({"ok": 1}, done=True)),
        ]
        made.append(render_demonstration(Demonstration(p, turns, "clerk"), AGENT, policy.template, TOOLS))
    return rows_from(made, max_length=policy.config.max_length)[0]


def trained(template, tokenizer, hidden, length, say, steps):
    """A policy of its own tokens that looks and then says what `say` says."""
    scratch = ScratchPolicy(
        kind="scratch", hidden_size=hidden, layers=2, heads=2, kv_heads=2, intermediate_size=48, max_length=length, tokenizer=tokenizer
    )  # fmt: skip
    texts = [f"say {i}" for i in range(10)] + [f'{{"tool":"say","letter":"{c}"}}{{"tool":"look"}}' for c in LETTERS]
    texts.append(system_text(TOOLS, AGENT.instruction))
    policy = from_scratch(scratch, template, texts * 4, ['{"tool":"say","letter":"', '{"tool":"look"}', '"}'], 0)
    rows = rows_of(policy, [problem(i) for i in range(100, 164)], say)
    learner = Learner(policy.model, Optimizer(kind="muon", learning_rate=2e-2, schedule="linear"), steps)
    for step in range(steps):
        learner.step([rows[(8 * step + i) % len(rows)] for i in range(8)], loss_for(SFT(type="sft")))
    return policy


@pytest.fixture(scope="module")
def pupil():
    """It looks, and then says what it saw half of the time, else any letter."""
    dice = random.Random(1)

    def say(problem):
        return wanted(problem) if dice.random() < 0.4 else dice.choice(LETTERS)

    tokenizer = BPETokenizer(kind="bpe", vocab_size=320)
    return trained("builtin/compact@1", tokenizer, 32, 80, say, 120)


@pytest.fixture(scope="module")
def elder():
    """It says what it saw, in other tokens (none for the pieces of a call) and in another template."""
    tokenizer = BPETokenizer(kind="bpe", vocab_size=400, schema_tokens=False)
    policy = trained("builtin/chatml@1", tokenizer, 32, 256, wanted, 110)
    assert likelihood(policy, rows_of(policy, UNSEEN, wanted)) > -0.2
    return policy


@pytest.fixture
def teacher(pupil, elder):
    return open_token_teacher(
        "elder", teacher_of(elder), pupil, Alignment(max_gap=1000), scoring=Scoring(), over="sampled",
        system=lambda _: system_text(TOOLS, AGENT.instruction),
    )  # fmt: skip


def arena(policy):
    return Arena(
        sampler=LocalSampler(policy, "start"), agent=AGENT, template=policy.template, environments={"toy": Looking()},
        verifiers={"right": Right()}, reward=Reward(), max_new_tokens=12, in_flight=64,
    )  # fmt: skip


def likelihood(policy, rows):
    """Return the mean logprob of what trains in a row."""
    found = Learner(policy.model, SPEC.optimizer, 1).logprobs(rows)
    return fmean(
        sum(v for v, m in zip(values, r.mask, strict=True) if m) for values, r in zip(found, rows, strict=True)
    )


def test_a_teacher_with_other_tokens_teaches_to_use_what_a_tool_said(pupil, teacher):
    student = copy.copy(pupil)
    student.model = copy.deepcopy(pupil.model)
    world, drawn = arena(student), []
    sampler = world.sampler
    assert isinstance(sampler, LocalSampler)
    learner = Learner(student.model, SPEC.optimizer, SPEC.steps)
    stage = Distilling(
        SPEC, ProblemOrder({"all": [problem(i) for i in range(32)]}, 0), Panel([teacher], lambda _: [1.0]), 0,
        student.config.max_length, lambda step: sampler.load_weights(student.model, f"step{step}"),
        keep=lambda step, found: drawn.extend(found),
    )  # fmt: skip
    held_out = rows_of(student, UNSEEN, wanted)
    before = likelihood(student, held_out)
    report = train_opd(learner, world, stage)
    first, success = report.curve[0], [line["success"] for line in report.curve]
    assert all(Source.TOOL in t.sources[t.turns[0].end : t.turns[1].start] for t in drawn if len(t.turns) > 1)
    assert fmean(line["turns"] for line in report.curve) > 1.9
    assert fmean(success[-3:]) > fmean(success[:2]) + 0.15
    assert likelihood(student, held_out) > before + 0.5
    assert first["alignment_coverage"] > 0.9
    assert first["alignment_merged"] > 0.2


def test_nothing_that_a_tool_said_trains(pupil, teacher):
    drawn = rollouts(arena(pupil), [problem(i) for i in range(16)], Draw(2, 1.0, 0, "d"))
    made = lesson(SPEC, drawn, [], Panel([teacher], lambda _: [1.0]), max_length=pupil.config.max_length, step=0)
    by_source = dict.fromkeys(Source, 0.0)
    inside = 0
    for row in made.rows:
        sources = made.trajectories[row.trajectory].sources[row.start : row.start + len(row.ids)]
        assert row.distill is not None
        assert row.scores is not None
        for source, weight, said in zip(sources, row.distill, row.scores[0].logprobs, strict=True):
            by_source[Source(source)] += abs(weight)
            assert source == Source.POLICY or math.isnan(said)
        wrote = [i for i, s in enumerate(sources) if s == Source.POLICY]
        inside += sum(s == Source.TOOL for s in sources[wrote[0] : wrote[-1]])
    assert inside > 32
    assert by_source.pop(Source.POLICY) == pytest.approx(1.0)
    assert set(by_source.values()) == {0.0}
