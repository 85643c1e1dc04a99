"""On-policy distillation across tokenizers at toy size, through real episodes and the real learner."""

import copy
import math

import pytest

from specs.agents import ToolLoop
from specs.alignment import Alignment
from specs.distillation import OPD, SampledTokens
from specs.errors import DataError, TrainingError
from specs.optimizer import Optimizer
from specs.policy import BPETokenizer, ScratchPolicy
from specs.supervised import SFT
from tasks.episodes.agents import agent_for
from tasks.episodes.render import render_demonstration
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.opening import Scoring, open_token_teacher
from tasks.learning.rows import rows_from
from tasks.loops.token_lessons import Lesson, Panel
from tasks.policy.foreign import teacher_of
from tasks.policy.initial import from_scratch
from tasks.tokens.template import system_text
from tests.tasks.loops.test_distill import run, spec
from tests.tasks.loops.toy import GOOD, TOOL, ToyEnvironment, problem, taught_policy

SAMPLED = SampledTokens(kind="sampled")


@pytest.fixture(scope="module")
def taught():
    return taught_policy()


@pytest.fixture(scope="module")
def elder():
    """A teacher with other tokens (none for the pieces of a call) and another template, which says good letters alone."""
    tokenizer = BPETokenizer(kind="bpe", vocab_size=290, schema_tokens=False)
    scratch = ScratchPolicy(
        kind="scratch", hidden_size=32, layers=2, heads=2, kv_heads=2, intermediate_size=48, max_length=400, tokenizer=tokenizer
    )  # fmt: skip
    texts = [f"say {i}" for i in range(10)] + ['{"tool":"say","letter":"a"}', "system user assistant tool"] * 4
    policy = from_scratch(scratch, "builtin/chatml@1", texts, (), 0)
    world, agent = ToyEnvironment(), agent_for(ToolLoop())
    made = [world.demonstrate(problem(i), 0) for i in range(80)]
    good = [d for d in made if d.turns[0][0].arguments["letter"] in GOOD]
    rendered = [render_demonstration(d, agent, policy.template, [TOOL]) for d in good]
    rows = rows_from(rendered, max_length=160)[0]
    learner = Learner(policy.model, Optimizer(kind="muon", learning_rate=2e-2, schedule="linear"), 50)
    for _ in range(50):
        learner.step(rows, loss_for(SFT(type="sft")))
    return policy


def opened(elder, taught, **align):
    teacher = teacher_of(elder)
    return open_token_teacher(
        "elder",
        teacher,
        taught,
        Alignment(**align),
        scoring=Scoring(),
        over="sampled",
        system=lambda _: system_text([TOOL], agent_for(ToolLoop()).instruction),
    )


@pytest.mark.parametrize("mode", ["equal", "broadcast", "teacher_share", "last", "causal"])
def test_the_policy_comes_near_a_teacher_with_other_tokens(taught, elder, mode):
    over = SampledTokens(kind="sampled", spread=mode)
    report = run(taught, [opened(elder, taught)], spec(over=over, steps=8))
    first, last = report.curve[0], report.curve[-1]
    assert first["success"] < 0.7
    assert last["success"] > first["success"] + 0.15
    assert first["coverage"] == first["alignment_coverage"] > 0.9
    assert first["alignment_merged"] > 0.2
    assert first["alignment_byte_span"] == 1.0
    assert last["reverse_kl_per_byte"] < first["reverse_kl_per_byte"]


def test_chunks_that_are_too_long_are_counted_and_too_few_stop_the_stage(taught, elder):
    report = run(taught, [opened(elder, taught, max_chunk_tokens=6)], spec(over=SAMPLED, steps=1, min_coverage=0.1))
    line = report.curve[0]
    assert (
        line["alignment_dropped_too_many_tokens"] > 0.2
    )  # every call begins with one token of sixteen of the teacher's
    assert line["alignment_dropped"] == pytest.approx(1 - line["coverage"])
    assert 0.1 < line["coverage"] < 1.0
    with pytest.raises(TrainingError, match=r"min_coverage is 0\.9.*its tokenizer may not line up"):
        run(taught, [opened(elder, taught, max_chunk_tokens=6)], spec(over=SAMPLED, steps=1, min_coverage=0.9))


def test_teachers_with_different_tokens_teach_together(taught, elder):
    same = OpenTeacher("same", copy.deepcopy(taught.model))
    both = [opened(elder, taught), same]
    alone = run(taught, [opened(elder, taught)], spec(over=SAMPLED, steps=6))
    for combine in ("mixture", "sum"):
        report = run(taught, both, spec(over=SAMPLED, steps=6, combine=combine))
        assert report.curve[-1]["success"] > report.curve[0]["success"]
        assert abs(report.curve[0]["teacher_gap"]) < abs(alone.curve[0]["teacher_gap"])
    named = Panel([opened(elder, taught), opened(elder, taught)], lambda _: [1.0, 1.0])
    assert "alignment_coverage" in named.figures() or "elder.alignment_coverage" in named.figures()


def test_distributions_over_different_vocabularies_are_not_compared(taught, elder):
    teacher = opened(elder, taught)
    with pytest.raises(DataError, match=r"teacher elder.*kind: sampled"):
        run(taught, [teacher], OPD(type="opd", steps=1, problems_per_step=4))


def test_the_gap_of_a_chunk_is_shared_by_its_tokens():
    from tasks.learning.rows import TrainingRow
    from tasks.learning.teaching import Coverage
    from tasks.protocols import TokenScores

    row = TrainingRow("r", "s", ids=[1, 2, 3, 4], mask=[False, True, True, True])
    row.sampler_logprobs, row.teacher_weights = [0.0, -1.0, -2.0, -0.5], [1.0]
    row.scores = [TokenScores([math.nan, 0.0, -1.0, -0.25], [-1, 1, 1, 3])]
    assert Lesson([row], {}, Coverage(3, 3)).gaps(row) == [0.0, -1.0, -1.0, -0.25]
