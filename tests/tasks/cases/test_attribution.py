from collections import Counter

import pytest

from specs.flywheel import Cause
from specs.records import Problem, Trajectory, Turn
from tasks.cases.attribution import Finding, attribute
from tasks.episodes.seeds import world_seed
from tests.tasks.cases.planting import CALM, DONE, FAULTY, after_faults, clerks_calls, episode, planted

EACH = 20
Labelled = list[tuple[Cause, str, Problem, Trajectory]]


@pytest.fixture(scope="module")
def labelled() -> Labelled:
    return [*planted(CALM, EACH), *after_faults(EACH)]


def found(of: Labelled, *, clerk: bool) -> list[tuple[Cause, str, Finding]]:
    findings: list[tuple[Cause, str, Finding]] = []
    for cause, what, problem, trajectory in of:
        environment = FAULTY if "fault" in what else CALM
        reference = environment.demonstrate(problem, world_seed(trajectory.seed)) if clerk else None
        findings.append((cause, what, attribute(trajectory, problem, reference)))
    return findings


def table(findings: list[tuple[Cause, str, Finding]]) -> dict[str, tuple[int, int, int]]:
    """Return by cause (planted, named, rightly named): recall is the last over the first, precision over the second."""
    wanted, named = Counter(c for c, _, _ in findings), Counter(f.cause for _, _, f in findings)
    right = Counter(c for c, _, f in findings if f.cause == c)
    return {c: (wanted[c], named[c], right[c]) for c in sorted({*wanted, *named})}


def test_with_the_clerks_run_the_rules_name_what_was_planted(labelled: Labelled) -> None:
    assert table(found(labelled, clerk=True)) == {
        # cause: (planted, named, rightly named)
        "argument": (40, 40, 40),
        "error_recovery": (20, 23, 20),  # 3 stop at the look-up after a fault, which says that nothing was done
        "format": (20, 20, 20),
        "long_horizon": (20, 20, 20),
        "loop": (20, 20, 20),
        "observation_misread": (20, 20, 20),
        "premature_stop": (60, 57, 57),
        "unknown_tool": (20, 20, 20),
        "wrong_tool": (20, 20, 20),
    }


def test_without_the_clerk_the_rules_know_less_and_say_so(labelled: Labelled) -> None:
    findings = found(labelled, clerk=False)
    assert table(findings) == {
        "argument": (40, 56, 36),
        "error_recovery": (20, 20, 20),
        "format": (20, 20, 20),
        "long_horizon": (20, 18, 18),
        "loop": (20, 20, 20),
        "observation_misread": (20, 0, 0),
        "premature_stop": (60, 37, 34),
        "unknown": (0, 49, 0),
        "unknown_tool": (20, 20, 20),
        "wrong_tool": (20, 0, 0),
    }
    assert max(f.confidence for _, _, f in findings if f.cause != "loop") <= 0.7


def test_the_first_wrong_turn_is_where_policy_and_clerk_part(labelled: Labelled) -> None:
    for cause, what, finding in found(labelled, clerk=True):
        assert (finding.turn is None) == (finding.cause == "long_horizon"), (cause, what, finding)
        assert finding.evidence
    problem = CALM.problems("train", 1, 5)[0]
    calls = clerks_calls(CALM, problem, 0)
    reference = CALM.demonstrate(problem, world_seed(0))
    for at in range(len(calls) - 1):
        finding = attribute(episode(CALM, problem, [*calls[:at], DONE], 0), problem, reference)
        assert (finding.cause, finding.turn) == ("premature_stop", at)


def test_where_the_clerks_own_calls_fail_it_is_the_environment() -> None:
    problem = CALM.problems("train", 1, 5)[0]
    problem.expected = {"state": {"orders": {}}, "answer": None}
    trajectory = episode(CALM, problem, clerks_calls(CALM, problem, 0), 0)
    finding = attribute(trajectory, problem, CALM.demonstrate(problem, world_seed(0)))
    assert (trajectory.success, finding.cause) == (False, "environment")


def test_trying_again_without_looking_is_named_with_less_confidence() -> None:
    for seed, problem in enumerate(FAULTY.problems("train", 400, 9)):
        calls = clerks_calls(FAULTY, problem, seed)
        whole = episode(FAULTY, problem, calls, seed)
        at = next((i for i, t in enumerate(whole.turns) if t.observation and t.observation.injected), None)
        if at is None or calls[at].name != "create_order":
            continue
        blind = episode(FAULTY, problem, [*calls[: at + 1], calls[at], DONE], seed)
        finding = attribute(blind, problem, FAULTY.demonstrate(problem, world_seed(seed)))
        assert (finding.cause, finding.confidence, finding.turn) == ("error_recovery", 0.6, at + 1)
        return
    raise AssertionError("no order met a fault")


def test_an_episode_without_a_turn_is_unknown() -> None:
    problem = CALM.problems("train", 1, 5)[0]
    nothing = episode(CALM, problem, [], 0)
    assert attribute(nothing, problem, None) == Finding("unknown", 0.0, None, {"turns": 0})


def test_words_between_calls_are_no_fault_and_an_end_in_words_is_an_end() -> None:
    problem = next(p for p in CALM.problems("train", 40, 5) if p.min_calls >= 4)
    calls = clerks_calls(CALM, problem, 0)
    reference = CALM.demonstrate(problem, world_seed(0))
    talks = episode(CALM, problem, calls[:2], 0, "finished")
    talks.turns.insert(1, Turn(0, 0, "Let me see.", None, None))
    talks.turns.append(Turn(0, 0, "That is all.", None, None))
    finding = attribute(talks, problem, reference)
    assert (finding.cause, finding.turn) == ("premature_stop", 3)
    cut = episode(CALM, problem, calls[:2], 0, "truncated")
    cut.turns.append(Turn(0, 0, '{"tool":"find_', None, None, "length"))
    assert attribute(cut, problem, reference).cause == "format"
