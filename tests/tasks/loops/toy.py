"""A world in which one letter is said, a policy of some ten thousand parameters that can say one, and a verifier."""

import random

from specs.agents import ToolLoop
from specs.errors import DataError
from specs.optimizer import Optimizer
from specs.policy import BPETokenizer, ScratchPolicy
from specs.records import Demonstration, Observation, Problem, ToolCall, Verdict
from specs.reward import Reward
from specs.supervised import SFT, SupervisedBatch
from tasks.episodes.agents import agent_for
from tasks.episodes.local import LocalSampler
from tasks.episodes.render import render_demonstration
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.rows import rows_from
from tasks.loops.batches import batch_plan
from tasks.loops.collect import Arena
from tasks.loops.fit import fit_supervised
from tasks.policy.initial import from_scratch
from tasks.protocols import ToolSchema

LETTERS = "abcd"
GOOD = "ab"
TOOL = ToolSchema(
    "say",
    "Say a letter.",
    {"type": "object", "properties": {"letter": {"type": "string"}}, "required": ["letter"]},
)


class ToyWorld:
    def __init__(self):
        self.done = False
        self.answer = None
        self.said = ""

    def call(self, call):
        self.said, self.done = call.arguments["letter"], True
        return Observation({"ok": 1}, done=True)

    def final_state(self):
        return {"said": self.said}

    def close(self):
        self.done = True


class ToyEnvironment:
    version = "toy@1"
    max_turns = 2

    def problems(self, split, size, seed):
        return [problem(i) for i in range(size)]

    def tools(self, problem=None):
        return [TOOL]

    def open(self, problem, seed):
        return ToyWorld()

    def sibling(self, problem, seed):
        raise DataError("no siblings here")

    def demonstrate(self, problem, seed, mistakes=0.0, *, recovers=True):
        letter = random.Random(f"{problem.id}/{seed}").choice(LETTERS)
        call = ToolCall("say", {"letter": letter}, "")
        return Demonstration(problem, [(call, Observation({"ok": 1}, done=True))], "clerk")


class GoodLetter:
    version = "good@1"

    def verify(self, trajectory, problem):
        if problem.expected.get("broken"):
            return Verdict("good", self.version, None, None, invalid="asked to fail")
        if problem.expected.get("never"):
            return Verdict("good", self.version, 0.0, passed=False)
        passed = (trajectory.final_state or {}).get("said", "") in list(GOOD)
        return Verdict("good", self.version, float(passed), passed)


def problem(i, **expected):
    return Problem(f"p{i}", "toy", "say", "train", f"say {i % 10}", {}, expected)


def toy_policy():
    spec = ScratchPolicy(
        kind="scratch",
        hidden_size=24,
        layers=1,
        heads=2,
        kv_heads=2,
        intermediate_size=32,
        max_length=48,
        tokenizer=BPETokenizer(kind="bpe", vocab_size=320),
    )
    texts = [f"say {i}" for i in range(10)] + [f'{{"tool":"say","letter":"{c}"}}' for c in LETTERS] * 4
    fragments = ['{"tool":"say","letter":"', '"}']
    return from_scratch(spec, "builtin/compact@1", texts, fragments, 0)


def demonstration_rows(policy, count=64):
    world, agent = ToyEnvironment(), agent_for(ToolLoop())
    made = [world.demonstrate(problem(i), 0) for i in range(count)]
    rendered = [render_demonstration(d, agent, policy.template, [TOOL]) for d in made]
    return rows_from(rendered, max_length=policy.config.max_length)[0]


def taught_policy():
    """Return a policy that says one of the four letters, each about as often."""
    policy = toy_policy()
    rows = demonstration_rows(policy)
    plan = batch_plan([r.length for r in rows], SupervisedBatch(rows=16), 12, 0)
    learner = Learner(policy.model, Optimizer(kind="muon", learning_rate=2e-2, schedule="linear"), len(plan))
    fit_supervised(learner, rows, plan, loss_for(SFT(type="sft")))
    return policy


def toy_arena(policy, **reward):
    return Arena(
        sampler=LocalSampler(policy, "start"),
        agent=agent_for(ToolLoop(max_new_tokens=8)),
        template=policy.template,
        environments={"toy": ToyEnvironment()},
        verifiers={"good": GoodLetter()},
        reward=Reward(**reward),
        max_new_tokens=8,
        in_flight=64,
    )
