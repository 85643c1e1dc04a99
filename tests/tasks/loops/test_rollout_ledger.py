"""Rollouts that are finished are drawn once, whatever ends the process that draws them."""

import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from specs.errors import DataError, Interrupted
from specs.records import Trajectory
from tasks.loops.collect import Arena, Draw, collect
from tasks.loops.rollout_ledger import LOOSE, Part, RolloutLedger
from tests.tasks.judging.builders import trajectory
from tests.tasks.loops.toy import ToyEnvironment, ToyWorld, problem, taught_policy, toy_arena

PROBLEMS = [problem(i) for i in range(60)]
DRAW = Draw(2, 1.3, 5, "x")


class Killed(BaseException):
    """The process ends: nothing that comes after it happens."""


class Witness(ToyEnvironment):
    """Counts how often each episode ended."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, int]] = Counter()

    def open(self, problem, seed):
        ended = self.ended

        class World(ToyWorld):
            def final_state(self):
                ended[(problem.id, seed)] += 1
                return super().final_state()

        return World()


@pytest.fixture(scope="module")
def policy():
    return taught_policy()


def arena_of(policy, witness: Witness, in_flight: int = 16, *, repeatable: bool = True) -> Arena:
    arena = replace(toy_arena(policy), in_flight=in_flight, environments={"toy": witness}, repeatable=repeatable)
    return replace(arena, max_new_tokens=6)


def dying(arena: Arena, calls: int, how: Callable[[], object]) -> Arena:
    """Return an arena whose sampler does `how` before the call after `calls`."""
    sampler, left = arena.sampler, iter(range(calls))

    class Sampler:
        name, policy_version = sampler.name, sampler.policy_version
        tokenizer_digest, max_length = sampler.tokenizer_digest, sampler.max_length

        def generate(self, requests):
            if next(left, None) is None:
                how()
            return sampler.generate(requests)

    return replace(arena, sampler=Sampler())


def killed() -> None:
    raise Killed


def without_clock(trajectories: list[Trajectory]) -> list[dict]:
    return [asdict(t) | {"latency": {}} for t in trajectories]


def drawn(arena: Arena, path: Path, **more) -> tuple[list[dict], RolloutLedger]:
    store = RolloutLedger(path)
    return without_clock(collect(arena, PROBLEMS, DRAW, store=store, **more).trajectories), store


def test_after_kills_the_bits_are_those_of_an_undisturbed_run_and_what_was_in_flight_is_repeated(policy, tmp_path):
    whole = without_clock(collect(arena_of(policy, Witness()), PROBLEMS, DRAW).trajectories)
    path, witness = tmp_path / "ckpt" / "rollouts.jsonl", Witness()
    arena = arena_of(policy, witness)
    for calls in (4, 3, 5):
        with pytest.raises(Killed):
            drawn(dying(arena, calls, killed), path)
    found, store = drawn(arena, path)
    assert found == whole
    assert store.notes() == []
    assert sum(witness.ended.values()) - len(witness.ended) <= 3 * 16
    before = witness.ended.copy()
    assert drawn(arena, path)[0] == whole, "what is all there is only read, the last part as well"
    assert witness.ended == before


def test_what_had_ended_when_it_was_asked_to_stop_is_never_drawn_again(policy, tmp_path):
    whole = without_clock(collect(arena_of(policy, Witness()), PROBLEMS, DRAW).trajectories)
    path, witness = tmp_path / "rollouts.jsonl", Witness()
    arena, asked = arena_of(policy, witness), []
    for calls in (4, 2, 2):  # in the midst of a part, where some have ended and others have not
        asked.clear()
        with pytest.raises(Interrupted):
            drawn(dying(arena, calls - 1, lambda: asked.append(1)), path, stop=lambda: bool(asked))
    found, store = drawn(arena, path)
    assert set(witness.ended.values()) == {1}
    assert store.loose
    assert "up to rounding" in store.notes()[0]
    assert [(t["id"], t["ids"], t["reward"]) for t in found] == [(t["id"], t["ids"], t["reward"]) for t in whole]


def test_where_batches_are_not_repeatable_each_that_ended_is_kept_through_a_kill(policy, tmp_path):
    path, witness = tmp_path / "rollouts.jsonl", Witness()
    arena = arena_of(policy, witness, repeatable=False)
    for calls in (1, 2, 3):
        with pytest.raises(Killed):
            drawn(dying(arena, calls, killed), path)
    found, _ = drawn(arena, path)
    assert set(witness.ended.values()) == {1}
    assert [t["id"] for t in found] == [f"x/{p.id}#{k}" for p in PROBLEMS for k in range(2)]


def test_a_stop_while_verdicts_are_reached_keeps_both(policy, tmp_path):
    path, witness = tmp_path / "rollouts.jsonl", Witness()
    arena = arena_of(policy, witness, repeatable=False)
    good, judged = arena.verifiers["good"], []

    class Slow:
        version = good.version

        def verify(self, trajectory, problem):
            judged.append(trajectory.id)
            return good.verify(trajectory, problem)

    arena = replace(arena, verifiers={"good": Slow()})
    with pytest.raises(Interrupted, match="judged"):
        drawn(arena, path, stop=lambda: len(judged) > 70)
    found, _ = drawn(arena, path)
    assert set(Counter(judged).values()) == {1}
    assert set(witness.ended.values()) == {1}
    assert all(t["success"] is not None for t in found)


def test_another_number_in_flight_uses_what_is_there(policy, tmp_path):
    path, witness = tmp_path / "rollouts.jsonl", Witness()
    whole = without_clock(collect(arena_of(policy, Witness()), PROBLEMS, DRAW).trajectories)
    with pytest.raises(Killed):
        drawn(dying(arena_of(policy, witness), 4, killed), path)
    before = sum(witness.ended.values())
    found, _ = drawn(arena_of(policy, witness, in_flight=6), path)
    assert [(t["id"], t["ids"]) for t in found] == [(t["id"], t["ids"]) for t in whole]
    assert sum(witness.ended.values()) - 120 <= min(16, before)


def test_a_damaged_line_is_drawn_again_and_said(policy, tmp_path):
    path, witness = tmp_path / "rollouts.jsonl", Witness()
    whole, _ = drawn(arena_of(policy, witness), path)
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"trajectory"' in line)
    lines[at] = lines[at].replace(b"0", b"1", 1)
    path.write_bytes(b"".join(lines))
    found, store = drawn(arena_of(policy, witness), path)
    assert found == whole, "its part was drawn again whole"
    assert store.notes() == ["1 lines of the ledger of rollouts were damaged; theirs were drawn again"]
    assert max(witness.ended.values()) == 2


def test_lines_carry_their_crc_and_floats_come_back_to_the_bit(tmp_path):
    store, path = RolloutLedger(tmp_path / "a.jsonl"), tmp_path / "a.jsonl"
    one = replace(
        trajectory(0), ids=[1, 2], sources=[3, 3], logprobs=[-0.1 - 1e-16, float("-inf")], latency={"model": 0.3}
    )
    store.keep(one)
    body, _, crc = path.read_bytes().rpartition(b', "~crc": "')
    assert int(crc[:8], 16) == zlib.crc32(body)
    assert json.loads(path.read_bytes())["trajectory"]["id"] == one.id
    assert RolloutLedger(path).read() == {(one.problem_id, one.sample): one}


def test_a_part_counts_when_it_is_whole_or_loosened(tmp_path):
    path, part = tmp_path / "a.jsonl", Part("0/2", 2)
    one, two = trajectory(0), replace(trajectory(1), final_state={"a": 1})
    store = RolloutLedger(path)
    store.keep(one, part)
    assert not path.exists(), "a part is written with its verdicts, in one go"
    store.write()
    assert RolloutLedger(path).read() == {}
    store.loosen(part)
    store.write()
    assert len(RolloutLedger(path).read()) == 1
    store.keep(two, LOOSE)
    assert len(RolloutLedger(path).read()) == 2
    with pytest.raises(DataError, match=f"rollouts of {two.problem_id}: one holds what JSON cannot"):
        store.keep(replace(two, final_state={"a": object()}))
