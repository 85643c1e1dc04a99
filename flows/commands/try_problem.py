"""`tutelage try`: let a policy solve one problem, live."""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from flows import lookup, own_programs
from flows.commands.bounds import at_least, not_negative
from flows.resolution import filled
from flows.resolve import auto_precision
from flows.state import State, find_home
from specs.data import Split
from specs.errors import ProgramError
from specs.loader import load_program
from specs.program import Program
from specs.records import Problem, problem_from, to_dict
from specs.verifiers import learnt

EXAMPLES = {"try": "tutelage try specs/programs/quickstart.yaml --policy champion --type replace"}

_DRAWN = 400
"""Problems drawn to find one of the type asked for."""


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("file", help="program file")
    parser.add_argument("--policy", default="champion", help="champion, previous, vN, a stage, init, or a folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--problem", metavar="ID", help="a problem of the program's last run, or the start of its id")
    which.add_argument("--type", metavar="T", help="a type of problem; any where left out")
    parser.add_argument("--environment", help="which environment; needed where the program has several")
    parser.add_argument("--split", default="hidden", choices=get_args(Split), help="split that a problem is drawn from")
    parser.add_argument("--temperature", type=not_negative, default=0.0, help="0 (the default) is greedy")
    parser.add_argument("--seed", type=at_least(0), default=0, help="draws another problem, and other tokens")
    parser.add_argument("--json", action="store_true", help="print the trajectory as JSON")


def run(args: argparse.Namespace) -> int:
    """Run one episode and print it as it happens."""
    loaded = load_program(Path(args.file))
    found = own_programs.look(loaded.program, Path(loaded.path).absolute().parent, loaded.where)
    program = filled(loaded.program, found)
    state = State(find_home())
    folder = lookup.policy_folder(state, args.policy, program.program)
    problem = _problem(args, program, state)
    _episode(args, program, folder, problem)
    return 0


def _environment_name(args: argparse.Namespace, program: Program) -> str:
    name = args.environment or (next(iter(program.environments)) if len(program.environments) == 1 else None)
    if name is None or name not in program.environments:
        raise ProgramError(
            f"--environment: found {args.environment!r}, expected one of {', '.join(program.environments)}"
        )
    return name


def _problem(args: argparse.Namespace, program: Program, state: State) -> Problem:
    """Return the problem that was asked for, or one that is drawn."""
    if args.problem is not None:
        return _known_problem(args.problem, program, state)
    from tasks.episodes.environments import environment_for

    name = _environment_name(args, program)
    environment = environment_for(name, program.environments[name])
    capacity = getattr(environment, "capacity", None)
    most = min(_DRAWN, capacity(args.split)) if capacity is not None else _DRAWN
    drawn = environment.problems(args.split, 1 if args.type is None else most, args.seed)
    fitting = [p for p in drawn if args.type in (None, p.type)]
    if not fitting:
        types = sorted({p.type for p in drawn})
        raise ProgramError(f"--type: found {args.type!r}, expected one of {', '.join(types)}")
    return fitting[0]


def _known_problem(wanted: str, program: Program, state: State) -> Problem:
    record = lookup.record_of(state, program.program)
    for name, source in program.data.items():
        if source.kind == "demonstrations" or f"data.{name}" not in record.nodes:
            continue
        with (lookup.node_output(state, record, f"data.{name}") / "records.jsonl").open(encoding="utf-8") as f:
            for line in f:
                data = json.loads(line)
                if data["id"].startswith(wanted):
                    return problem_from(data)
    raise ProgramError(
        f"--problem: no problem {wanted!r} in the data of the last run; expected an id of one of its sets"
    )


def _episode(args: argparse.Namespace, program: Program, folder: Path, problem: Problem) -> None:
    from flows.conversation import end_lines, headline, prompt_lines, turn_lines
    from tasks.episodes.agents import agent_for
    from tasks.episodes.driver import watch_episode
    from tasks.episodes.environments import environment_for
    from tasks.episodes.local import LocalSampler
    from tasks.evidence.judge import judge
    from tasks.evidence.verifiers import verifier_for
    from tasks.policy.store import load_policy
    from tasks.protocols import SamplingSettings

    policy = load_policy(folder)
    precision = program.policy.sampler_precision
    sampler = LocalSampler(policy, policy.digest[:12], auto_precision(program) if precision == "auto" else precision)
    agent = agent_for(program.agent)
    environment = environment_for(problem.environment, program.environments[problem.environment])
    settings = SamplingSettings(args.temperature, program.agent.max_new_tokens)
    shown = 0

    def say(lines: list[str]) -> None:
        if not args.json:
            print("\n".join(lines), flush=True)

    def watch(record: Any) -> None:
        nonlocal shown
        if shown == 0:
            say([f"{problem.id} · {problem.type}", *prompt_lines(record, policy.tokenizer)])
        for turn in record.turns[shown:]:
            say(turn_lines(record, turn))
        shown = len(record.turns)

    trajectory = watch_episode(sampler, agent, policy.template, environment, problem, settings, args.seed, watch)
    apart = learnt(program.verifiers)  # these judge what trains, and no single episode
    verifiers = {n: verifier_for(n, s) for n, s in program.verifiers.items() if n not in apart}
    soft = {n: w for n, w in program.reward.soft.items() if n not in apart}
    judge(trajectory, problem, verifiers, program.reward.model_copy(update={"soft": soft}))
    say([*end_lines(trajectory), headline(trajectory)])
    if args.json:
        print(json.dumps(to_dict(trajectory), ensure_ascii=False))
