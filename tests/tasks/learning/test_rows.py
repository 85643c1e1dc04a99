import pytest

from specs.errors import DataError, TrainingError
from specs.records import Source, Status, Trajectory, Turn
from tasks.learning.rows import TrainingRow, behind, check_rows, merge_reports, rows_from

P, U, A, T = Source.TEMPLATE, Source.USER, Source.POLICY, Source.TOOL


def trajectory(sources, *, name="t", ids=None, status: Status = "finished", **more):
    n = len(sources)
    return Trajectory(
        id=name,
        problem_id="p",
        problem_type="kind",
        environment="desk",
        environment_version="1",
        agent="tool_loop",
        group="g",
        sample=0,
        seed=0,
        ids=ids or list(range(1, n + 1)),
        sources=[int(s) for s in sources],
        logprobs=[-0.5 if s == A else 0.0 for s in sources],
        policy_versions=[],
        turns=[Turn(0, n, "", None, None)],
        status=status,
        sampling={"temperature": 0.7},
        **more,
    )


def test_only_what_the_policy_wrote_trains_whatever_its_ids_are():
    end = pad = 2
    made = trajectory([P, U, P, A, A, T, P, A, A], ids=[1, end, pad, 6, end, 9, end, 7, end])
    (row,), report = rows_from([made], max_length=32, source="demos")
    assert row.mask == [False, False, False, True, True, False, False, True, True]
    assert (row.ids[4], row.ids[8]) == (end, end)
    assert report.to_json()["sources"] == {"demos": {"rows": 1, "tokens": 9, "trained": 4, "trained_share": 0.444444}}
    check_rows(report, 32)


def test_truncation_that_leaves_nothing_to_train_drops_the_row():
    kept = trajectory([U] * 31 + [A] * 5, name="kept")
    lost = trajectory([U] * 40 + [A] * 5, name="lost")
    rows, report = rows_from([kept, lost], max_length=32)
    assert [(r.id, r.trained, len(r.ids)) for r in rows] == [("kept", 1, 32)]
    assert (report.dropped, report.cut) == ({"no_supervised_token": 1}, 1)
    _, empty = rows_from([lost], max_length=32)
    with pytest.raises(TrainingError, match=r"max_length is 32.*raise it"):
        check_rows(empty, 32)


def test_all_or_nothing_is_refused():
    _, nothing = rows_from([trajectory([P, U, T])], max_length=32, source="demos")
    with pytest.raises(TrainingError, match=r"'demos'.*no row is left"):
        check_rows(nothing, 32)
    everything = [trajectory([A, A, A], name="a"), trajectory([A, A], name="b")]
    _, report = rows_from(everything, max_length=32, source="demos")
    with pytest.raises(TrainingError, match=r"'demos': all 3 tokens .*prompts included, in each of its 2 rows"):
        check_rows(report, 32)
    _, some = rows_from([*everything, trajectory([P, U, A], name="c")], max_length=32)
    check_rows(some, 32)
    with pytest.raises(ValueError, match="nothing stands before it"):
        TrainingRow(id="a", source="s", ids=[1, 2], mask=[True, True])


def test_what_may_not_train_is_counted_by_reason():
    made = [
        trajectory([U, A], name="a", status="truncated"),
        trajectory([U, A], name="b", status="infrastructure"),
        trajectory([U, A], name="c"),
        trajectory([U, A], name="d"),
    ]
    rows, report = rows_from(made, max_length=9, advantages={"c": 0.5}, behaviour=True)
    assert [(r.id, r.advantage, r.temperature, r.sampler_logprobs) for r in rows] == [("c", 0.5, 0.7, [0.0, -0.5])]
    assert report.dropped == {"truncated": 1, "infrastructure": 1, "no_advantage": 1}
    assert len(report.sentences()) == 4
    scored, _ = rows_from(made, max_length=9, truncated="score")
    assert [r.id for r in scored] == ["a", "c", "d"]
    assert scored[0].temperature == 1.0


def test_columns_of_unequal_length_are_damage():
    made = trajectory([U, A])
    made.logprobs.append(0.0)
    with pytest.raises(DataError, match=r"2 ids, 2 sources, 3 logprobs"):
        rows_from([made], max_length=9)


def test_reports_of_sets_merge():
    _, one = rows_from([trajectory([U, A])], max_length=9, source="one")
    _, two = rows_from([trajectory([U, A], status="truncated")], max_length=9, source="two")
    merged = merge_reports([one, two])
    assert list(merged.by_source) == ["one", "two"]
    assert merged.dropped == {"truncated": 1}


def test_tokens_after_the_last_trained_one_are_not_forwarded():
    row = TrainingRow(id="a", source="s", ids=[1, 2, 3, 4], mask=[False, True, False, False])
    assert (row.length, row.trained) == (2, 1)


def test_turns_with_advantages_of_their_own_give_them_to_their_tokens():
    made = trajectory([P, A, A, T, A, P, A], name="t")
    made.turns = [Turn(1, 3, "", None, None), Turn(4, 5, "", None, None), Turn(6, 7, "", None, None)]
    own = {"t": [0.5, -1.0, 2.0]}
    (row,), _ = rows_from([made], max_length=32, behaviour=True, advantages={"t": 0.25}, turn_advantages=own)
    assert row.advantages == [0, 0.5, 0.5, 0, -1.0, 0, 2.0]
    assert row.advantage == 0.25
    made.sampling["segments"] = [0, 5]
    rows, _ = rows_from([made], max_length=32, behaviour=True, advantages={"t": 0.25}, turn_advantages=own)
    assert [r.advantages for r in rows] == [[0, 0.5, 0.5, 0, -1.0], [0, 2.0]]
    assert [(r.trajectory, r.contexts) for r in rows] == [("t", 2)] * 2
    (cut, _), _ = rows_from([made], max_length=3, behaviour=True, advantages={"t": 0.25}, turn_advantages=own)
    assert cut.advantages == [0, 0.5, 0.5]


def test_rewards_of_turns_come_along_with_what_a_policy_gradient_reads():
    made = trajectory([P, A, A, T, A])
    made.turns = [Turn(1, 3, "", None, None, reward=0.25), Turn(4, 5, "", None, None)]
    (row,), _ = rows_from([made], max_length=4, behaviour=True)
    assert row.rewards == [0.0, 0.25, 0.25, 0.0]
    assert behind([7, 7], row).rewards is None
    assert rows_from([made], max_length=9)[0][0].rewards is None
    made.turns[0].reward = 0.0
    assert rows_from([made], max_length=9, behaviour=True)[0][0].rewards is None
