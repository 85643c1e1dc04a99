import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import DataError, TrainingError
from specs.preference import Pairing
from specs.records import NOT_TRAINED, Pair, pair_from, to_dict
from tasks.learning.rows import TrainingRow
from tasks.loops.pairing import PairReport, mismatched, pair_indices, pair_rows, pair_up, require_pairs
from tests.tasks.learning.test_rows import A, T, U, trajectory
from tests.tasks.loops.test_selection import drawn

ALL = Pairing(choose="all")


def failed(problem, name, reward, tokens=3, **more):
    made = drawn(problem, name, reward, tokens, **more)
    made.success = False
    return made


def test_worked_example():
    scores = [0.9, 0.5, 0.5, 0.1]
    found, ties = pair_indices(scores, 0.0, "all")
    assert (found, ties) == ([(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)], [(1, 2)])
    assert pair_indices(scores, 0.0, "best_worst") == ([(0, 3)], [])
    assert pair_indices(scores, 0.4, "all")[0] == [(0, 3)]
    assert pair_indices([1.0], 0.0, "best_worst") == ([], [])


@given(scores=st.lists(st.floats(-1, 1, width=16), max_size=8), margin=st.floats(0, 1, width=16))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_pair_is_more_than_the_margin_apart_and_none_is_lost(scores, margin):
    found, ties = pair_indices(scores, margin, "all")
    assert all(scores[i] - scores[j] > margin for i, j in found)
    assert len(found) + len(ties) == len(scores) * (len(scores) - 1) // 2
    best, _ = pair_indices(scores, margin, "best_worst")
    assert bool(best) == bool(found)


def test_a_success_is_paired_with_a_failure_of_its_problem():
    made = [
        drawn("p", "a", 1.0), drawn("p", "b", 1.2), failed("p", "c", 0.1), failed("p", "d", -1.0),
        drawn("q", "e", 1.0), failed("r", "f", 0.0),
    ]  # fmt: skip
    report = pair_up(made, Pairing())
    assert [(p.chosen, p.rejected, p.weight) for p in report.pairs] == [("b", "d", 1.0)]
    assert (report.problems, report.without) == (3, {"no_failure": 1, "no_success": 1})
    assert report.pairs[0].margin == pytest.approx(2.2)
    every = pair_up(made, ALL)
    assert {(p.chosen, p.rejected) for p in every.pairs} == {(x, y) for x in "ab" for y in "cd"}
    assert sum(p.weight for p in every.pairs) == pytest.approx(1.0)


def test_lower_rewards_may_be_rejected_and_ties_are_counted():
    made = [drawn("p", "a", 1.3), drawn("p", "b", 1.0), drawn("p", "c", 1.0)]
    assert pair_up(made, ALL).without == {"no_failure": 1}
    report = pair_up(made, Pairing(choose="all", rejected="lower"))
    assert [(p.chosen, p.rejected) for p in report.pairs] == [("a", "b"), ("a", "c")]
    assert report.ties == 1
    wide = pair_up(made, Pairing(rejected="lower", margin=0.5))
    assert (wide.pairs, wide.without, wide.ties) == ([], {"tie": 1}, 1)
    assert any("no more than the margin" in line for line in wide.sentences())


def test_a_failure_is_never_chosen_whatever_its_reward():
    made = [failed("p", "a", 5.0), failed("p", "b", 0.0)]
    assert pair_up(made, Pairing(choose="all", rejected="lower")).pairs == []


def test_what_takes_part_in_no_pair_is_counted():
    drifted = drawn("p", "e", 1.0)
    drifted.tags.append(NOT_TRAINED)
    made = [
        drawn("p", "a", 1.0), failed("p", "b", 0.0), drawn("p", "c", None), failed("p", "d", 0.0, status="truncated"),
        drifted, drawn("p", "f", 0.0, status="infrastructure"), drawn("p", "g", 1.0, status="turn_limit"),
        failed("p", "h", float("nan")),
    ]  # fmt: skip
    report = pair_up(made, Pairing())
    assert [(p.chosen, p.rejected) for p in report.pairs] == [("a", "b")]
    expected = {"invalid": 2, "truncated": 1, "token_drift": 1, "infrastructure": 1, "unfinished": 1}
    assert report.unusable == expected


def written(name, completion, prompt=(7,)):
    ids = [*prompt, *completion]
    return trajectory([U] * len(prompt) + [A] * len(completion), name=name, ids=ids)


def pairs_of(sides):
    """Return a report with a pair of each two completions, and its trajectories."""
    found = {}
    pairs = []
    for name, (chosen, rejected) in sides.items():
        found |= {f"{name}+": chosen, f"{name}-": rejected}
        pairs.append(Pair(name, name, f"{name}+", f"{name}-", 1.0))
    return PairReport(pairs=pairs, problems=len(pairs)), found


def test_pairs_whose_difference_disappears_are_dropped_under_their_own_reasons():
    sides = {
        "p1": ([1, 2, 3], [1, 2, 3]),
        "p2": ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 42]),
        "p3": ([1, 2, 3], []),
        "p4": ([5] * 20, [6, 7]),
        "p5": ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4]),
    }
    report, found = pairs_of({n: (written(f"{n}+", a), written(f"{n}-", b)) for n, (a, b) in sides.items()})
    rows = pair_rows(report, found, max_length=9)  # a prompt of one token and eight of the completion
    expected = {"identical": 1, "identical_after_cut": 1, "empty_side": 1, "beginning_after_cut": 1}
    assert report.dropped == expected
    assert [(p.id, a.trained, b.trained) for p, (a, b) in zip(report.pairs, rows, strict=True)] == [("p4", 8, 2)]
    assert report.cut == 1
    ((chosen, rejected),) = rows
    assert (chosen.pair, chosen.preferred, rejected.pair, rejected.preferred) == ("p4", True, "p4", False)
    with pytest.raises(TrainingError, match=r"1 pairs of 5 problems.*1 identical_after_cut"):
        require_pairs(report, Pairing(at_least=2), "prefer")


def test_other_prompts_other_contexts_and_mere_luck_teach_nothing():
    lucky = [trajectory([U, A, T, A], name=n, ids=[7, 1, t, 2]) for n, t in (("a", 3), ("b", 4))]
    contexts = trajectory([U, A, U, A], name="c", ids=[7, 1, 7, 2])
    contexts.sampling["segments"] = [0, 2]
    report, found = pairs_of(
        {
            "luck": (lucky[0], lucky[1]),
            "prompt": (written("x", [1, 2], prompt=(7, 8)), written("y", [1, 3], prompt=(7, 9))),
            "contexts": (contexts, written("z", [1, 3])),
        }
    )
    assert pair_rows(report, found, max_length=9) == []
    assert report.dropped == {"same_actions": 1, "different_prompts": 1, "several_contexts": 1}


def test_what_is_left_of_a_problem_weighs_one_together():
    made = {"a": written("a", [1]), "b": written("b", [2]), "c": written("c", [1]), "d": written("d", [3])}
    pairs = [Pair(f"a>{x}", "p", "a", x, 1.0, 1 / 3) for x in "bcd"]
    rows = pair_rows(PairReport(pairs=pairs, problems=1), made, max_length=9)
    assert [row.weight for both in rows for row in both] == pytest.approx([1.0] * 4)


def test_weights_of_rows_have_a_mean_of_one_and_leave_each_problem_the_same():
    made = {n: written(n, [k + 1]) for k, n in enumerate("abcdef")}
    pairs = [Pair(f"a>{x}", "p", "a", x, 1.0, 1 / 3) for x in "bcd"] + [Pair("e>f", "q", "e", "f", 1.0)]
    rows = pair_rows(PairReport(pairs=pairs, problems=2), made, max_length=9)
    assert [chosen.weight for chosen, _ in rows] == pytest.approx([2 / 3] * 3 + [2.0])
    assert [p.weight for p in pairs] == pytest.approx([1 / 3] * 3 + [1.0])


def test_a_pair_without_its_trajectory_is_an_error():
    report = PairReport(pairs=[Pair("x", "p", "here", "gone", 1.0)])
    with pytest.raises(DataError, match="no trajectory gone"):
        pair_rows(report, {"here": written("here", [1])}, max_length=9)


def test_pairs_survive_being_written():
    pair = Pair("a>b", "p", "a", "b", 0.5, 0.25, by="teacher")
    assert pair_from(to_dict(pair)) == pair


def test_mismatched_rows_have_the_completion_of_another_problem():
    rows = [
        TrainingRow(id=str(i), source="s", ids=[i, i, 10 + i, 20 + i], mask=[False, False, True, True])
        for i in range(4)
    ]
    found = mismatched(rows, ["p", "p", "q", "q"], max_length=3)
    assert [found[i].ids for i in range(4)] == [[0, 0, 12], [1, 1, 13], [2, 2, 10], [3, 3, 11]]
    assert all(row.mask == [False, False, True] for row in found.values())
    assert mismatched(rows, ["p"] * 4, max_length=3) == {}


def test_mismatched_completions_are_of_both_sides_evenly_and_of_several_pairs():
    rows = [
        TrainingRow(id=str(i), source="s", ids=[i, 100 + i], mask=[False, True], preferred=i % 2 == 0)
        for i in range(10)
    ]
    problems = ["p"] * 6 + ["q"] * 4  # three pairs of one problem and two of another
    found = mismatched(rows, problems, max_length=9)
    partners = [found[i].ids[1] - 100 for i in range(10)]
    assert all(rows[j].preferred is row.preferred for j, row in zip(partners, rows, strict=True))
    assert all(problems[j] != problem for j, problem in zip(partners, problems, strict=True))
    assert set(partners[:6]) == {6, 7, 8, 9}
