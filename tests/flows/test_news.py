"""What a scheduled run takes for news of a program with rounds."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows import confirming, pools
from flows.compile import compile
from flows.news import settled_plan
from flows.registry import promote
from flows.resolve import resolve
from flows.state import NodeReceipt, RunRecord, State, now
from specs.errors import ProgramError
from specs.loader import LoadedProgram
from specs.records import BadCase, to_dict
from tests.flows.programs import SMALL, program
from tests.flows.test_cases_command import case
from tests.flows.test_registry import candidate
from tests.flows.wheels import TURNING


def ran(state: State, loaded: LoadedProgram, *, rounds_only: bool = False) -> None:
    """Have every node of a program done, as a run that looks anew leaves it."""
    resolution = resolve(loaded, state_view=state, environ={}, refresh=True, rounds_only=rounds_only)
    plan = compile(loaded.program, resolution)
    digests: dict[str, str] = {}
    for node in plan:
        inputs = {name: digests[i] for name, i in node.inputs.items()}
        key = state.run_key(node, inputs)
        (state.node(key) / "out").mkdir(parents=True, exist_ok=True)
        (state.node(key) / "out" / "what").write_text(node.id)
        made = state.seal(NodeReceipt(node.id, node.kind, key, node.plan_key, "completed", [], "", inputs))
        digests[node.id] = made.output_digest
    stored = state.save_plan(plan.to_dict())
    state.save_record(RunRecord("e1", "small", "small.yaml", {}, stored, resolution.to_dict(), {}, now(), now(), 0))


def test_a_run_of_rounds_only_is_no_run_of_the_main_part(tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    state, loaded = State(home), LoadedProgram(program(TURNING), tmp_path / "small.yaml", {}, ())
    state.prepare()
    state.program("small").mkdir()
    with pytest.raises(
        ProgramError, match=r"rounds only, but there is no champion for them to begin with; run all of it once"
    ):
        resolve(loaded, state_view=state, environ={}, rounds_only=True)
    without = LoadedProgram(program(SMALL), tmp_path / "small.yaml", {}, ())
    with pytest.raises(ProgramError, match=r"small: rounds only, but the program has no flywheel"):
        resolve(without, state_view=state, environ={}, rounds_only=True)
    ran(state, loaded)
    assert settled_plan(loaded, state, rounds_only=True) is not None, "all of it was done"
    promote(home, "small", candidate(tmp_path, "rl", "gate1"))
    ran(state, loaded, rounds_only=True)
    found = settled_plan(loaded, state, rounds_only=True)
    assert found is not None
    assert "teach" not in found.stages
    assert settled_plan(loaded, state) is None, "the main part has not seen what may be new"
    assert not resolve(loaded, state_view=state, environ={}).reused
    ran(state, loaded)
    assert settled_plan(loaded, state) is not None


def known(home: Path) -> BadCase:
    found = replace(case(1, status="suspected", confirmed_by=None, life="open"), program="small")
    pools.publish(home, "small", pools.CASES, [to_dict(found)], {})
    return found


def test_a_case_that_a_person_confirmed_is_news_and_what_became_of_it_is_none(tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    state, loaded = State(home), LoadedProgram(program(TURNING), tmp_path / "small.yaml", {}, ())
    state.prepare()
    state.program("small").mkdir()
    ran(state, loaded)
    assert settled_plan(loaded, state) is not None
    suspected = known(home)
    assert settled_plan(loaded, state) is not None, "that rounds find cases is no news"
    confirming.give(home, suspected, confirmed=True, by="Ada", reason="it guessed")
    assert settled_plan(loaded, state) is None
    confirming.note_lives(home, "small", [replace(suspected, life="in_training")])
    assert settled_plan(loaded, state) is None, "no round has read the answer yet"
    ran(state, loaded)
    assert settled_plan(loaded, state) is not None
    confirming.note_lives(home, "small", [replace(suspected, life="fixed")])
    assert settled_plan(loaded, state) is not None, "what became of a case is no answer"
    confirming.give(home, suspected, confirmed=False, by="Bob", reason="it is right")
    assert settled_plan(loaded, state) is None
