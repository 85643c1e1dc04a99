"""Training from the pools of a round: demonstrations, verified trajectories, problems; and what must not train."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.work import inputs, policy_gradient, supervised
from specs.errors import DataError
from specs.grpo import GRPO
from specs.records import Trajectory
from specs.stages import Needs, Preflight
from specs.supervised import RFT, SFT, SupervisedBatch
from tasks.episodes.shards import read_shards, write_shards
from tests.flows import test_stages
from tests.flows.test_stages import JUDGED, MUON, SHARED, node, read

Folders = dict[str, Path]
base = test_stages.base
"""A fixture: demonstrations, problems, an untouched policy, and one after sft."""


@pytest.fixture(scope="module")
def rolled(base: tuple[Path, Folders]) -> list[Trajectory]:
    """Return verified trajectories of the taught policy."""
    folder, at = base
    spec = RFT(type="rft", samples=4, optimizer=MUON)
    params = JUDGED | {"data": {"train": None}, "algorithm": spec, "round": 1}
    made = node(folder, "mined", {"policy": at["taught"], "data.train": at["data.train"]}, params)
    supervised.collect(made)
    found = [t for t in read_shards(made.out / "trajectories") if t.success and t.status == "finished"]
    assert len(found) >= 3
    return found


def pool(folder: Path, records: Path | None = None, trajectories: list[Trajectory] | None = None) -> Path:
    """Write a pool's folder."""
    folder.mkdir()
    lines = [] if records is None else (records / "records.jsonl").read_text().splitlines()[:20]
    (folder / "records.jsonl").write_text("".join(f"{x}\n" for x in lines))
    if trajectories is not None:
        write_shards(folder / "trajectories", trajectories)
    count = len(lines) + len(trajectories or ())
    (folder / "summary.json").write_text(json.dumps({"records": count}))
    return folder


def mend(tmp_path: Path, policy: Path, data: dict[str, float], pools: Folders) -> Any:
    spec = SFT(type="sft", batch=SupervisedBatch(rows=16), optimizer=MUON)
    params = SHARED | {"algorithm": spec, "data": data, "of_round": list(pools)}
    return node(tmp_path, "mend@1", {"policy": policy, **{f"data.{n}": f for n, f in pools.items()}}, params)


def test_sft_mixes_demonstrations_and_verified_trajectories(
    base: tuple[Path, Folders],
    rolled: list[Trajectory],
    tmp_path: Path,
) -> None:
    _, at = base
    pools = {
        "repaired": pool(tmp_path / "repaired", at["data.demos"]),
        "successes": pool(tmp_path / "successes", None, rolled[:3]),
        "anchor": pool(tmp_path / "anchor", at["data.demos"], rolled[:2]),
    }
    made = mend(tmp_path, at["taught"], {"anchor": 0.5, "repaired": 0.3, "successes": 0.2}, pools)
    supervised.sft(made)
    sources = read(made.out / "rows.json")["sources"]
    assert {n: c["rows"] for n, c in sources.items()} == {"anchor": 22, "repaired": 20, "successes": 3}
    own = rolled[0]
    found = inputs.pool_trajectories(made, "successes", inputs.start_policy(made))
    assert found[0].ids == own.ids, "the tokens of the rollout train as they are"


def test_the_share_of_an_empty_pool_goes_to_the_others_and_is_told(
    base: tuple[Path, Folders],
    tmp_path: Path,
) -> None:
    _, at = base
    pools = {"repaired": pool(tmp_path / "repaired"), "anchor": pool(tmp_path / "anchor", at["data.demos"])}
    made = mend(tmp_path, at["taught"], {"anchor": 0.5, "repaired": 0.5}, pools)
    assert inputs.weights(made) == {"anchor": 0.5}
    notes = supervised.sft(made).notes
    assert "pool repaired is empty: its share goes to anchor" in notes
    assert read(made.out / "rows.json")["sources"].keys() == {"anchor"}


@pytest.mark.parametrize("change", [{"success": False}, {"success": None}, {"status": "truncated"}])
def test_a_trajectory_that_failed_is_never_an_example(
    base: tuple[Path, Folders],
    rolled: list[Trajectory],
    tmp_path: Path,
    change: dict[str, Any],
) -> None:
    _, at = base
    pools = {"successes": pool(tmp_path / "successes", None, [rolled[0], replace(rolled[1], **change)])}
    with pytest.raises(DataError, match=r"did not succeed .* only verified trajectories are examples"):
        supervised.sft(mend(tmp_path, at["taught"], {"successes": 1.0}, pools))


def test_tokens_of_another_tokenizer_are_refused(
    base: tuple[Path, Folders],
    rolled: list[Trajectory],
    tmp_path: Path,
) -> None:
    _, at = base
    turn = rolled[0].turns[0]
    other = [i + 1 if turn.start <= k < turn.end - 1 else i for k, i in enumerate(rolled[0].ids)]
    pools = {"successes": pool(tmp_path / "successes", None, [replace(rolled[0], ids=other)])}
    with pytest.raises(DataError, match="they are of another tokenizer or template than the policy's"):
        supervised.sft(mend(tmp_path, at["taught"], {"successes": 1.0}, pools))


def test_problems_do_not_teach_by_example(base: tuple[Path, Folders], tmp_path: Path) -> None:
    _, at = base
    pools = {"hard": pool(tmp_path / "hard", at["data.train"])}
    with pytest.raises(DataError, match="holds problems, but sft needs demonstrations"):
        supervised.sft(mend(tmp_path, at["taught"], {"hard": 1.0}, pools))


def test_rollouts_draw_from_the_hard_pool_and_from_data_sets(
    base: tuple[Path, Folders],
    tmp_path: Path,
) -> None:
    _, at = base
    empty, some = pool(tmp_path / "empty"), pool(tmp_path / "some", at["data.train"])
    spec = RFT(type="rft", samples=2, optimizer=MUON)
    params = JUDGED | {"data": {"hard": 0.5, "train": 0.5}, "algorithm": spec, "round": 1, "of_round": ["hard"]}
    given = {"policy": at["taught"], "data.train": at["data.train"]}
    collected = node(tmp_path, "harden@1.collect1", given | {"data.hard": empty}, params)
    assert "pool hard is empty: its share goes to train" in supervised.collect(collected).notes
    assert len(list(read_shards(collected.out / "trajectories"))) == 48
    grpo = GRPO(type="grpo", group_size=2, problems_per_step=2, steps=1, optimizer=MUON)
    more = {"algorithm": grpo, "preflight": Preflight(problems=6, samples=2), "needs": Needs(success=0.0)}
    asked = node(tmp_path, "rl@1.preflight1", given | {"data.hard": some}, params | more)
    assert policy_gradient.preflight(asked).cost["rollouts"] == 12
