"""The BFCL problems: splits by function, schemas, gold calls, and an absent package."""

import importlib.util
from typing import Any

import pytest

from specs.agents import ToolLoop
from specs.environments import BFCL
from specs.errors import DataError, ProgramError
from specs.verifiers import ToolCalls
from tasks.episodes.agents import agent_for
from tasks.episodes.environments.bfcl import BFCLEnvironment
from tasks.evidence.verifiers import verifier_for
from tasks.evidence.verifiers.selftest import episode

ALL = BFCL(kind="bfcl", categories=["simple_python", "multiple", "live_simple"], train_share=0.5)


def every(environment: BFCLEnvironment, split: str):
    return environment.problems(split, environment.capacity(split), 1)


def test_no_function_is_called_in_two_splits_whatever_the_categories() -> None:
    environments = [
        BFCLEnvironment("tools", ALL),
        BFCLEnvironment("tools", ALL.model_copy(update={"categories": ["multiple"]})),
    ]
    called: dict[str, set[str]] = {}
    for environment in environments:
        for split in ("train", "golden", "hidden", "audit"):
            names = {p.expected["calls"][0]["name"] for p in every(environment, split)}
            called.setdefault(split, set()).update(names)

    assert all(called[a].isdisjoint(called[b]) for a in called for b in called if a != b)
    assert environments[0].capacity("hidden") >= 300


def test_every_gold_call_passes_and_every_spoiled_one_fails() -> None:
    environment = BFCLEnvironment("tools", ALL)
    verifier = verifier_for("calls", ToolCalls(kind="tool_calls"))
    judged = 0
    for split in ("train", "golden", "hidden", "audit"):
        for problem in every(environment, split):
            gold, spoiled = environment.demonstrate(problem, 0), environment.demonstrate(problem, 0, 1.0)
            assert verifier.verify(episode(state=gold.final_state), problem).passed, problem.id
            if spoiled.spoiled:
                assert not verifier.verify(episode(state=spoiled.final_state), problem).passed, problem.id
            judged += 1
    assert judged == 856
    assert environment.dropped == {"live_simple: an allowed list is empty": 2}


@pytest.mark.parametrize("call_format", ["nested", "react"])
def test_every_gold_call_is_read_as_it_was_written_in_the_formats_that_a_check_allows(call_format: Any) -> None:
    environment, agent = BFCLEnvironment("tools", ALL), agent_for(ToolLoop(call_format=call_format))
    for split in ("train", "golden", "hidden", "audit"):
        for problem in every(environment, split):
            for call, _ in environment.demonstrate(problem, 0).turns:
                read = agent.parse(agent.write(call), environment.tools(problem))
                assert (read.name, read.arguments) == (call.name, call.arguments)


def test_schemas_are_json_schemas_with_short_hints() -> None:
    environment = BFCLEnvironment("tools", ALL.model_copy(update={"hint_length": 10}))

    def walk(schema: dict) -> None:
        assert schema.get("type") in (None, "object", "string", "integer", "number", "boolean", "array")
        assert len(schema.get("description", "")) <= 10
        for inner in schema.get("properties", {}).values():
            walk(inner)
        if "items" in schema:
            walk(schema["items"])

    for problem in every(environment, "train"):
        for tool in environment.tools(problem):
            walk(tool.parameters)
            assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])
    without = BFCLEnvironment("tools", ALL.model_copy(update={"hint_length": 0}))
    assert '"description"' not in str(without.tools(every(without, "audit")[0])[0].parameters)


def test_distractors_are_added_once_each_and_stay_the_same() -> None:
    plain = BFCLEnvironment("tools", ALL)
    more = BFCLEnvironment("tools", ALL.model_copy(update={"distractors": 3}))
    for a, b, again in zip(every(plain, "golden"), every(more, "golden"), every(more, "golden"), strict=True):
        offered = [t["name"] for t in b.tools or ()]
        assert a.id == b.id
        assert b.tools == again.tools
        assert len(offered) == len(set(offered)) == len(a.tools or ()) + 3
        assert a.expected["calls"][0]["name"] in offered


def test_more_than_there_are_is_a_data_error_with_the_number() -> None:
    environment = BFCLEnvironment("tools", ALL)
    with pytest.raises(DataError, match=rf"split audit holds {environment.capacity('audit')} problems of .* 5000 were"):
        environment.problems("audit", 5000, 1)


def test_an_absent_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProgramError, match="pip install --no-deps bfcl-eval"):
        BFCLEnvironment("tools", ALL)
