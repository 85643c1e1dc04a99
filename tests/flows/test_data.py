"""The data nodes: draws, demonstrations, strict files, and training kept apart from evaluation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.context import MetricSpool, NodeContext, Outcome
from flows.work import data
from flows.work.jsonl import read_lines, read_problems
from specs.data import Apart, Demonstrations, ProblemFile, Problems
from specs.environments import BFCL, Environment, OrderDesk, ToolFault
from specs.errors import DataError, Interrupted, ProgramError
from specs.records import demonstration_from, problem_from, to_dict
from tasks.episodes.environments import environment_for

DESK = OrderDesk(kind="order_desk")
Make = Callable[..., NodeContext]


def dump(spec: Any) -> Any:
    return spec.model_dump(mode="json", by_alias=True)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def node(kind: str, name: str, params: dict[str, Any], inputs: dict[str, Path] | None = None, **more: Any):
        out = tmp_path / name
        out.mkdir()
        return NodeContext(
            id=name, kind=kind, params=params, execution={}, seed=17, inputs=inputs or {}, out=out,
            checkpoints=tmp_path, metrics=MetricSpool(tmp_path / "metrics.jsonl"),
            stop=more.get("stop", lambda: False), progress=lambda what, share, figures: None,
        )  # fmt: skip

    return node


def run_source(
    make: Make, name: str, source: Any, environment: Environment = DESK, **more: Any
) -> tuple[Outcome, Path]:
    kind = f"data.{source.kind}"
    node = make(kind, name, {"source": dump(source), "environment": dump(environment), **more})
    body = {"demonstrations": data.demonstrations, "problems": data.problems, "file": data.problem_file}[source.kind]
    return body(node), node.out


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def test_demonstrations_are_solved_or_spoiled_and_the_same_each_time(make: Make) -> None:
    source = Demonstrations.model_validate(
        {"kind": "demonstrations", "environment": "desk", "size": 200, "spoil": {"share": 0.5}}
    )
    outcome, out = run_source(make, "a", source)
    _, again = run_source(make, "b", source)
    found = [demonstration_from(r) for r in records(out)]

    assert (out / "records.jsonl").read_bytes() == (again / "records.jsonl").read_bytes()
    assert len(found) == 200
    assert json.loads(json.dumps([to_dict(d) for d in found])) == records(out)
    assert all(data.solves(d) for d in found if not d.spoiled)
    assert 50 < sum(d.spoiled for d in found) < 100
    assert summary(out)["spoiled"] == sum(d.spoiled for d in found) == outcome.metrics["spoiled"]
    assert sum(summary(out)["by_type"].values()) == summary(out)["records"] == 200


def test_only_the_types_named_are_spoiled(make: Make) -> None:
    spoil = {"share": 1.0, "mistakes": 1.0, "types": ["mail"]}
    source = {"kind": "demonstrations", "environment": "desk", "size": 80, "spoil": spoil}
    _, out = run_source(make, "a", Demonstrations.model_validate(source))

    assert {r["problem"]["type"] for r in records(out) if r["spoiled"]} == {"mail"}


def test_the_clerk_gives_up_on_types_without_recovery_alone(make: Make) -> None:
    environment = OrderDesk(kind="order_desk", max_turns=12, faults=[ToolFault(probability=0.2)])
    source = {"kind": "demonstrations", "environment": "desk", "size": 200, "spoil": {"no_recovery": ["place"]}}
    _, out = run_source(make, "a", Demonstrations.model_validate(source), environment)
    found = [demonstration_from(r) for r in records(out)]

    assert {d.problem.type for d in found if d.spoiled} == {"place"}
    placed = [d for d in found if d.problem.type == "place"]
    assert all(d.spoiled == any(o.injected for _, o in d.turns) for d in placed)
    assert all(data.solves(d) for d in found if not d.spoiled)


def test_a_type_without_recovery_that_is_never_drawn_is_refused(make: Make) -> None:
    source = {"kind": "demonstrations", "environment": "desk", "size": 20, "spoil": {"no_recovery": ["discount"]}}
    with pytest.raises(ProgramError, match=r"names the type 'discount', of which no problem was drawn"):
        run_source(make, "a", Demonstrations.model_validate(source))


def test_clean_demonstrations_are_solved_under_faults_too(make: Make) -> None:
    environment = OrderDesk(kind="order_desk", max_turns=12, faults=[ToolFault(probability=0.2, applied=0.5)])
    _, out = run_source(make, "a", Demonstrations(kind="demonstrations", environment="desk", size=60), environment)
    found = [demonstration_from(r) for r in records(out)]

    assert all(data.solves(d) for d in found)
    assert any(o.injected for d in found for _, o in d.turns)


def test_gold_calls_are_said_to_be_gold(make: Make) -> None:
    source = Demonstrations(kind="demonstrations", environment="tools", by="gold", size=20)
    _, out = run_source(make, "a", source, BFCL(kind="bfcl"))
    assert {r["by"] for r in records(out)} == {"gold"}
    with pytest.raises(ProgramError, match="write by: gold"):
        run_source(make, "b", source.model_copy(update={"by": "clerk"}), BFCL(kind="bfcl"))


def test_demonstrations_and_problems_are_other_draws_and_a_declared_seed_is_used(make: Make) -> None:
    demos = run_source(make, "d", Demonstrations(kind="demonstrations", environment="desk", size=50))[1]
    plain = Problems(kind="problems", environment="desk", size=50)
    train = run_source(make, "p", plain)[1]
    seeded = run_source(make, "s", plain.model_copy(update={"seed": 3}))[1]

    assert not {r["problem"]["id"] for r in records(demos)} & {r["id"] for r in records(train)}
    assert [problem_from(r) for r in records(seeded)] == environment_for("desk", DESK).problems("train", 50, 3)


def test_a_filter_keeps_as_many_as_were_asked_for(make: Make) -> None:
    source = Problems.model_validate(
        {"kind": "problems", "environment": "desk", "size": 30, "where": "problem.type in ['mail', 'place']"}
    )
    outcome, out = run_source(make, "a", source)

    assert set(summary(out)["by_type"]) == {"mail", "place"}
    assert summary(out)["records"] == 30
    assert outcome.notes == [f"{summary(out)['rejected']} problems rejected by `where`"]
    with pytest.raises(DataError, match="only 0 satisfy where"):
        run_source(make, "b", source.model_copy(update={"where": "problem.type == 'other'", "size": 3}))


def test_dropped_problems_are_told(make: Make) -> None:
    environment = BFCL(kind="bfcl", categories=["live_simple"])
    outcome, _ = run_source(make, "a", Problems(kind="problems", environment="tools", size=5), environment)
    assert outcome.notes == ["2 problems left out: live_simple: an allowed list is empty"]


def test_a_stop_is_heeded(make: Make) -> None:
    source = Demonstrations(kind="demonstrations", environment="desk", size=5)
    node = make(
        "data.demonstrations", "a", {"source": dump(source), "environment": dump(DESK)}, stop=lambda: True
    )  # fmt: skip
    with pytest.raises(Interrupted):
        data.demonstrations(node)


def test_a_problem_file_reads_back_what_was_written(make: Make, tmp_path: Path) -> None:
    drawn = environment_for("desk", DESK).problems("hidden", 20, 1)
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(to_dict(p)) + "\r\n\r\n" for p in drawn))
    _, out = run_source(make, "a", ProblemFile(kind="file", environment="desk", path="mine.jsonl"), path=str(path))

    assert [problem_from(r) for r in records(out)] == drawn


def test_a_world_that_cannot_be_opened_is_refused_with_its_line(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    source = ProblemFile(kind="file", environment="desk", path=str(path))
    good = environment_for("desk", DESK).problems("hidden", 1, 1)[0]
    text_for_number = {**good.world, "stock": {"red lamp": "many"}}
    one_handle_twice = {**good.world, "customers": {"Ada Adler": "10", "Ben Adler": "10"}}
    for number, world in enumerate([{"customers": 3}, {}, text_for_number, one_handle_twice]):
        path.write_text("\n" + json.dumps({"id": "1", "text": "x", "expected": {}, "world": world}))
        with pytest.raises(DataError, match=r"mine\.jsonl:2: the world of problem '1' cannot be opened"):
            run_source(make, f"bad-{number}", source)
    path.write_text(json.dumps({"id": "1", "text": "x", "expected": {}, "tools": [{"title": "f"}]}))
    with pytest.raises(DataError, match=r"mine\.jsonl:1: the tools of problem '1' cannot be used"):
        run_source(make, "tools", source.model_copy(update={"environment": "tools"}), BFCL(kind="bfcl"))


# KP-DATA-01
def test_marks_line_ends_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    raw = b'\xef\xbb\xbf{"id":"a","prompt":"1+1?"}\r\n\r\n{"id":"b","prompt":"2+2?","meta":{"k":1}}\r\n'
    plain = b'{"id":"a","prompt":"1+1?"}\n{"id":"b","prompt":"2+2?","meta":{"k":1}}\n'
    (tmp_path / "raw").write_bytes(raw)
    (tmp_path / "plain").write_bytes(plain)
    found = read_lines(tmp_path / "raw")

    assert found == [(1, {"id": "a", "prompt": "1+1?"}), (3, {"id": "b", "prompt": "2+2?", "meta": {"k": 1}})]
    assert [r for _, r in found] == [r for _, r in read_lines(tmp_path / "plain")]


# KP-DATA-01, KP-DATA-02
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id":"a","reward":NaN}', "NaN is not a number"),
        (b'{"id":"a","reward":-Infinity}', "-Infinity is not a number"),
        (b'{"id":"b","label":"good","label":"bad"}', "repeated key 'label'"),
        (b'{"id":"c","reward":1e999}', "1e999 is not finite"),
        (b'{"id":"c","reward":' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b"[1, 2]", "found a list, expected a JSON object"),
        (b'"text"', "found a str"),
        (b'\xef\xbb\xbf{"id":"a"}', "byte-order mark in the middle"),
        (b'{"id":"\xff"}', "not UTF-8 at byte 7"),
        (b'{"id":"a"', "Expecting"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id":"0"}\n\n' + line + b"\n")
    with pytest.raises(DataError) as refused:
        read_lines(path)

    assert f"{path}:3: " in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"\xef\xbb\xbf", b"\r\n \n\n"])
def test_a_file_without_records_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(raw)
    with pytest.raises(DataError, match="holds no record"):
        read_lines(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"id": "2", "text": "x"}', "the field 'expected' is missing"),
        ('{"id": "2", "text": "x", "expected": {}, "txt": 1}', "unknown field 'txt'"),
        ('{"id": 2, "text": "x", "expected": {}}', "id is 2, expected a text that is not empty"),
        ('{"id": "2", "text": "x", "expected": []}', "expected is [], expected an object"),
        ('{"id": "2", "text": "x", "expected": {}, "min_calls": true}', "min_calls is True, expected a whole number"),
        (
            '{"id": "2", "text": "x", "expected": {}, "min_calls": -100}',
            "min_calls is -100, expected a whole number of at",
        ),
        ('{"id": "2", "text": "x", "expected": {}, "min_calls": 1.5}', "min_calls is 1.5"),
        ('{"id": "2", "text": "x", "expected": {}, "tags": [1]}', "tags is [1], expected a list of texts"),
        (
            '{"id": "2", "text": "x", "expected": {}, "tags": [{"a": 1}]}',
            "tags is [{'a': 1}], expected a list of texts",
        ),
        ('{"id": "2", "text": "x", "expected": {}, "tags": ["adversarial", null]}', "expected a list of texts"),
        ('{"id": "2", "text": "x", "expected": {}, "tools": [1]}', "tools is [1], expected a list of objects"),
        ('{"id": "2", "text": " ", "expected": {}}', "text is ' ', expected a text that is not empty"),
        ('{"id": "1", "text": "x", "expected": {}}', "the id '1' stands in line 1 too"),
        ('{"id": "2", "text": "x", "expected": {}, "environment": "e"}', "environment 'e' is not"),
    ],
)
def test_a_record_that_is_no_problem_is_refused(tmp_path: Path, record: str, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "1", "text": "x", "expected": {}}\n' + record)
    with pytest.raises(DataError) as refused:
        read_problems(path, "desk")

    assert f"{path}:2: " in str(refused.value)
    assert reason in str(refused.value)


def test_a_file_that_changed_or_is_gone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="changed since it was planned"):
        read_lines(path, digest="0" * 64)


@pytest.fixture
def overlapping(make: Make) -> dict[str, Path]:
    plain = Problems(kind="problems", environment="desk", size=30, seed=1)
    both = {"eval.hidden": plain.model_copy(update={"split": "hidden", "size": 10})}
    leaky = Demonstrations(kind="demonstrations", environment="desk", size=20, seed=1, split="hidden")
    both |= {"train.train": plain, "train.demos": leaky}
    return {name: run_source(make, name, source)[1] for name, source in both.items()}


def test_a_hit_stops_or_drops_as_declared(make: Make, overlapping: dict[str, Path]) -> None:
    stop = make("data.apart", "stop", {"apart": dump(Apart())}, overlapping)
    with pytest.raises(DataError, match=r"10 training records give .* write apart: \{on_hit: drop\}"):
        data.apart(stop)
    drop = make("data.apart", "drop", {"apart": dump(Apart(on_hit="drop"))}, overlapping)
    outcome = data.apart(drop)
    written = json.loads((drop.out / "apart.json").read_text())

    assert outcome.metrics == {"train_records": 50.0, "eval_records": 10.0, "hits": 10.0}
    assert sorted(written["dropped"]) == ["demos"]
    assert set(written["dropped"]["demos"]) == {r["id"] for r in records(overlapping["eval.hidden"])}
    assert outcome.notes == ["data.demos: 10 records dropped that give evaluation records away"]


def test_no_hit_and_nothing_left(make: Make, overlapping: dict[str, Path]) -> None:
    clean = {n: p for n, p in overlapping.items() if n != "train.demos"}
    node = make("data.apart", "clean", {"apart": dump(Apart())}, clean)
    assert data.apart(node).metrics["hits"] == 0
    assert json.loads((node.out / "apart.json").read_text()) == {"hits": [], "dropped": {}}

    hidden = overlapping["eval.hidden"]
    all_gone = {"train.copy": hidden, "eval.hidden": hidden}
    with pytest.raises(DataError, match="nothing is left to train on"):
        data.apart(make("data.apart", "gone", {"apart": dump(Apart(on_hit="drop"))}, all_gone))
