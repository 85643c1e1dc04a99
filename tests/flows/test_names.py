"""Names of what trains: rollouts of several stages and demonstrations of several sets may share one, and are told apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.work import inputs, opd, self_teaching, supervised
from specs.distillation import OPD
from specs.errors import TutelageError
from specs.grpo import GRPO
from specs.records import Trajectory
from specs.self_teaching import SelfEvolve, SuccessDistill
from specs.supervised import SFT
from specs.value_based import PPO
from tasks.episodes.shards import write_shards
from tasks.learning.critic import estimate
from tasks.learning.rows import rows_from
from tasks.loops.self_teaching import weighed
from tests.flows import test_pool_training
from tests.flows.test_pool_training import Folders, pool
from tests.flows.test_stages import JUDGED, ROLL, SHARED, node

base, rolled = test_pool_training.base, test_pool_training.rolled


def namesakes(rolled: list[Trajectory]) -> tuple[Trajectory, Trajectory]:
    """Return two trajectories with one name that say different things, the second of a lower reward."""
    first = rolled[0]
    other = next(t for t in rolled if [turn.text for turn in t.turns] != [turn.text for turn in first.turns])
    return replace(first, reward=1.0), replace(other, id=first.id, reward=0.5)


def test_each_is_shown_what_itself_says(base: tuple[Path, Folders], rolled: list[Trajectory], tmp_path: Path) -> None:
    _, at = base
    both = namesakes(rolled)
    folder = pool(tmp_path / "successes", None, list(both))
    params = SHARED | {"algorithm": SFT(type="sft"), "data": {"successes": None}, "of_round": ["successes"]}
    made = node(tmp_path, "mend", {"policy": at["taught"], "data.successes": folder}, params)
    policy = inputs.start_policy(made)
    policy.config = replace(policy.config, max_length=1024)
    rows, _ = supervised.demonstration_rows(made, "successes", policy, shown=1.0)
    for row, own in zip(rows, both, strict=True):
        assert row.ids == [*policy.template.aside("\n".join(turn.text for turn in own.turns)), *own.ids]


def test_a_critic_walks_through_each_demonstration_alone(base: tuple[Path, Folders], tmp_path: Path) -> None:
    _, at = base
    twice = pool(tmp_path / "twice", at["data.demos"])
    lines = (twice / "records.jsonl").read_text()
    (twice / "records.jsonl").write_text(lines + lines)
    sets = {"data.one": pool(tmp_path / "one", at["data.demos"]), "data.twice": twice}
    params = SHARED | {"algorithm": GRPO(type="grpo"), "data": {"one": None}}
    made = node(tmp_path, "rl", {"policy": at["taught"], **sets}, params)
    policy = inputs.start_policy(made)
    rows = [r for name in ("one", "twice") for r in supervised.demonstration_rows(made, name, policy)[0]]
    assert len({row.trajectory for row in rows}) == len(rows) == 60
    spec = PPO(type="ppo", whiten=False, gae_lambda=0.5)
    for row in rows:
        row.advantage = 1.0
    values = [[0.1 * (i % 7)] * len(row.ids) for i, row in enumerate(rows)]
    alone = [estimate([replace(row)], [own], spec).returns[0] for row, own in zip(rows, values, strict=True)]
    found = estimate(rows, values, spec).returns
    assert [f[: len(a)] for f, a in zip(found, alone, strict=True)] == [pytest.approx(a) for a in alone]


def test_experience_of_several_stages_keeps_its_own_weights(
    base: tuple[Path, Folders], rolled: list[Trajectory], tmp_path: Path
) -> None:
    _, at = base
    folders: dict[str, Path] = {}
    for name, own in zip(("first", "second"), namesakes(rolled), strict=True):
        write_shards(tmp_path / name / "trajectories", [own])
        folders[f"experience.{name}"] = tmp_path / name
    told = SuccessDistill(tokens="action", shortness=1.0)
    spec = SelfEvolve(type="self_evolve", experience=["first", "second"], success_distill=told, experience_per_step=2)
    made = node(tmp_path, "rl", {"policy": at["taught"], "data.train": at["data.train"], **folders}, JUDGED | ROLL)
    arena, sampler = inputs.arena(made, inputs.start_policy(made))
    teaching = self_teaching.teaching(made, spec, arena, sampler)
    assert teaching is not None
    shared = teaching.shared(0)
    rows, _ = rows_from(shared, max_length=128)
    weighed(rows, shared, told)
    assert {(t.reward, round(row.weight, 6)) for t, row in zip(shared, rows, strict=True)} == {
        (1.0, round(4 / 3, 6)),
        (0.5, round(2 / 3, 6)),
    }


class _Seen(TutelageError):
    pass


def test_demonstrations_of_one_problem_are_two_beside_rollouts(
    base: tuple[Path, Folders], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, at = base
    twice = pool(tmp_path / "twice", at["data.demos"])
    lines = (twice / "records.jsonl").read_text()
    (twice / "records.jsonl").write_text(lines + lines)
    seen: list[Any] = []

    def stop(learner: Any, arena: Any, stage: Any, hooks: Any) -> None:
        seen.append(stage)
        raise _Seen("enough")

    monkeypatch.setattr(opd, "train_opd", stop)
    spec = OPD(type="opd", demonstrations=0.5)
    params = JUDGED | {
        "data": {"train": None, "demos": None},
        "algorithm": spec,
        "teachers": {"self": {"kind": "earlier_self", "of": "start"}},
        "routing": [{"when": None, "teachers": {"self": 1.0}, "reject": False, "history": None}],
    }
    folders = {
        "policy": at["taught"],
        "data.train": at["data.train"],
        "data.demos": twice,
        "teacher.self": at["taught"],
    }
    with pytest.raises(_Seen):
        opd.train(node(tmp_path, "pupil", folders, params))
    names = [t.id for t in seen[0].demonstrations]
    assert len(set(names)) == len(names) == 40
