"""A world that counts to a target, an environment that can break, a scripted sampler and a policy that babbles."""

from collections.abc import Sequence

from specs.agents import ToolLoop
from specs.errors import DataError
from specs.policy import BPETokenizer, ScratchPolicy
from specs.records import Demonstration, Observation, Problem, ToolCall
from tasks.episodes.agents import ToolLoopAgent
from tasks.policy.initial import from_scratch
from tasks.protocols import Completion, ToolSchema
from tasks.tokens.text import compact_json, fragments

TOOLS = [
    ToolSchema(
        "add",
        "Add to the counter.",
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["n"],
        },
    ),
    ToolSchema(
        "finish", "End.", {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    ),
]
AGENT = ToolLoopAgent(ToolLoop(max_new_tokens=12))


class CounterWorld:
    def __init__(self, broken: str | None = None) -> None:
        self.count, self.done, self.answer, self.closed = 0, False, None, 0
        self.broken = broken

    def call(self, call: ToolCall) -> Observation:
        if self.broken == "call":
            raise RuntimeError("the counter is on fire")
        if call.name == "finish":
            self.done, self.answer = True, call.arguments["answer"]
            return Observation({"ok": 1}, done=True)
        self.count += call.arguments["n"]
        return Observation({"count": self.count}, changed=True)

    def final_state(self):
        if self.broken == "state":
            raise OSError("no state")
        return {"count": self.count}

    def close(self) -> None:
        self.closed += 1


class CounterEnvironment:
    version = "counter@1"
    max_turns = 4

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.opened: list[CounterWorld] = []

    def problems(self, split: str, size: int, seed: int) -> list[Problem]:
        return [problem(i) for i in range(size)]

    def tools(self, problem: Problem | None = None) -> list[ToolSchema]:
        return TOOLS

    def open(self, problem: Problem, seed: int) -> CounterWorld:
        if self.broken == "open":
            raise RuntimeError("closed today")
        self.opened.append(CounterWorld(self.broken))
        return self.opened[-1]

    def sibling(self, problem: Problem, seed: int) -> Problem:
        raise DataError("no siblings here")

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        return demonstration(problem)


def problem(i: int) -> Problem:
    return Problem(f"p{i}", "counter", "count", "train", f"Count to {i}, please.", {}, {"count": i})


def demonstration(of: Problem) -> Demonstration:
    n = of.expected["count"]
    turns = [
        (ToolCall("add", {"n": n, "note": "ü🎯"}, ""), Observation({"count": n}, changed=True)),
        (ToolCall("finish", {"answer": str(n)}, ""), Observation({"ok": 1}, done=True)),
    ]
    return Demonstration(of, turns, "clerk", answer=str(n), final_state={"count": n})


def counter_policy(seed: int = 0, max_length: int = 96, heads: int = 4, kv_heads: int = 2):
    spec = ScratchPolicy(
        kind="scratch",
        hidden_size=32,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        intermediate_size=48,
        max_length=max_length,
        tokenizer=BPETokenizer(kind="bpe", vocab_size=330),
    )
    made = [demonstration(problem(i)) for i in range(30)]
    texts = [d.problem.text for d in made] + [AGENT.write(c) for d in made for c, _ in d.turns]
    observations = [o.data for d in made for _, o in d.turns]
    texts += [compact_json(o) for o in observations]
    return from_scratch(spec, "builtin/compact@1", texts, fragments(TOOLS, "flat", observations), seed)


class ScriptedSampler:
    """Says given texts, one a turn; None is a completion that was cut."""

    name = "script"
    policy_version = "script"
    max_length = 96

    def __init__(self, template, texts: Sequence[str | None]) -> None:
        self.template, self.texts = template, texts
        self.tokenizer_digest = template.digest
        self.turns: dict[int, int] = {}
        self.requests: list = []

    def generate(self, requests):
        self.requests.append([(r.session, list(r.ids), r.seed) for r in requests])
        return [self._one(r) for r in requests]

    def _one(self, request):
        turn = self.turns.get(request.session, 0)
        self.turns[request.session] = turn + 1
        text = self.texts[min(turn, len(self.texts) - 1)]
        if text is None:
            ids = self.template.tokenizer.encode('{"tool":"add"')
            return Completion(ids, [-0.5] * len(ids), "length", self.policy_version)
        ids = self.template.completion(text)
        return Completion(ids, [-0.5] * len(ids), "stop", self.policy_version)
