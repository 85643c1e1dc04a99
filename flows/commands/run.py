"""`tutelage run` and `tutelage resume`: carry out a program, reusing all that is done."""

import argparse
import contextlib
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.compile import compile as compile_program
from flows.drive import Finish, Request, drive
from flows.leases import driver_lease
from flows.news import settled_plan
from flows.nodes import Plan
from flows.plan import load as load_plan
from flows.plan import same, statuses
from flows.prepare import last_plan
from flows.reconcile import reconcile
from flows.resolve import resolve
from flows.state import State, exit_code, find_home
from specs.errors import OutOfDateError, UsageError
from specs.positions import did_you_mean, listed
from specs.schedule import BY_HAND

if TYPE_CHECKING:
    from specs.loader import LoadedProgram

EXAMPLES = {
    "run": "tutelage run specs/programs/quickstart.yaml",
    "resume": "tutelage resume",
}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of `run` or `resume`."""
    parser.set_defaults(resuming=name == "resume")
    if name == "resume":
        parser.add_argument("file", nargs="?", help="program file; that of the last run where left out")
    else:
        parser.add_argument("file", help="program file")
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="change a field, repeatable"
        )
        parser.add_argument("--from", dest="start", metavar="NODE", help="do this node and all after it again")
        part = parser.add_mutually_exclusive_group()
        part.add_argument("--until", metavar="NODE", help="stop after this node")
        part.add_argument("--only", metavar="NODE", help="do this node alone; what it needs must be done")
        parser.add_argument(
            "--smoke", action="store_true", help="the smallest form of the program, nothing is promoted"
        )
        parser.add_argument("--refresh", action="store_true", help="look up moving names (aliases) anew")
        parser.add_argument(
            "--rounds-only",
            action=argparse.BooleanOptionalAction,
            help="rounds of the flywheel alone, from the champion; no stage of the main part",
        )
        parser.add_argument("--plan", metavar="FILE", help="refuse to run unless this saved plan is still right")
        parser.add_argument(
            "--scheduled",
            metavar="NAME",
            help="run as this schedule of the program does: look anew, only where there is news, with its settings",
        )
    parser.add_argument(
        "--wait",
        action="store_true" if name == "resume" else argparse.BooleanOptionalAction,
        help="wait while another process runs this program",
    )
    parser.add_argument("--no-services", dest="services", action="store_false", help="without Prefect and MLflow")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and no progress")


def run(args: argparse.Namespace) -> int:
    """Run or resume a program; return the exit code."""
    state = State(find_home())
    options = _options(args) if not args.resuming else _last_options(state, args.file)
    loaded = _load(options)
    options = _as_declared(loaded, options | {"wait": args.wait})
    name = loaded.program.program
    state.prepare()
    state.program(name).mkdir(exist_ok=True)
    with driver_lease(state.program(name) / "lease", name, wait=bool(options["wait"])):
        said = reconcile(state, name)
        damaged = dict.fromkeys(state.damage)
        for text in () if args.json else (*(str(w) for w in loaded.warnings), *damaged, *said):
            print(text, file=sys.stderr)
        plan = _plan(loaded, state, options)
        request = _request(args, options)
        if not args.json:
            _say_why(plan, state, request)
        finish = drive(plan, state, replace(request, notify=loaded.program.notify))
    with contextlib.suppress(BrokenPipeError):  # who reads no further still gets the exit code
        _tell(args, state, plan, finish, request)
        sys.stdout.flush()
    return exit_code(finish.record) or 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "file": str(Path(args.file).absolute()),
        "set": list(args.set),
        "until": args.until,
        "only": args.only,
        "smoke": args.smoke,
        "start": args.start,
        "refresh": args.refresh,
        "rounds_only": args.rounds_only,
        "plan": args.plan,
        "schedule": args.scheduled,
    }


def _last_options(state: State, file: str | None) -> dict[str, Any]:
    """Return the options of the last run (of the program in `file`, where given)."""
    names = state.programs()
    for name in names:
        record = state.last(name)
        if record is not None and (file is None or Path(file).absolute() == Path(record.file)):
            kept = {k: record.arguments.get(k) for k in ("set", "until", "only", "smoke", "rounds_only")}
            return {"file": record.file, "start": None, "refresh": False, "plan": None, **kept}
    if file is not None:
        empty = dict.fromkeys(("until", "only", "start", "plan", "rounds_only"))
        return {"file": str(Path(file).absolute()), "set": [], "smoke": False, "refresh": False, **empty}
    raise UsageError(f"{state.home}: no program was run here yet; start one with `{EXAMPLES['run']}`")


def _load(options: dict[str, Any]) -> "LoadedProgram":
    from specs.loader import load_program

    loaded = load_program(options["file"], options["set"] or [])
    if options["smoke"]:
        from flows.smoke import smoke

        loaded = replace(loaded, program=smoke(loaded.program))
    return loaded


def _as_declared(loaded: "LoadedProgram", options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the settings of the schedule that is named, where the command line says nothing of them."""
    name = options.get("schedule")
    if name in (None, BY_HAND):
        return options
    known = loaded.program.schedule
    if name not in known:
        there = f"expected {listed(known)}{did_you_mean(name, known)}" if known else "which declares none"
        raise UsageError(
            f"--scheduled: found {name!r}, which is no schedule of {options['file']}, {there}; where schedules were "
            f"renamed, `tutelage schedule {shlex.quote(_relative(options['file']))} --apply` tells Prefect"
        )
    declared = {"wait": known[name].overlap == "wait", "rounds_only": known[name].rounds_only}
    return options | {k: v for k, v in declared.items() if options[k] is None}


def _plan(loaded: "LoadedProgram", state: State, options: dict[str, Any]) -> Plan:
    scheduled, rounds_only = options.get("schedule") is not None, bool(options["rounds_only"])
    if scheduled and (settled := settled_plan(loaded, state, rounds_only=rounds_only)) is not None:
        return settled
    refresh = bool(options["refresh"]) or scheduled
    resolution = resolve(loaded, state_view=state, refresh=refresh, rounds_only=rounds_only)
    plan = compile_program(loaded.program, resolution)
    if options["plan"] is not None:
        stored = load_plan(Path(options["plan"]))
        if not same(stored, plan):
            raise OutOfDateError(
                f"{options['plan']}: no longer what {options['file']} means; see what changed with "
                f"`tutelage plan {options['file']} --diff {options['plan']}`, or save it anew"
            )
    return plan


def _request(args: argparse.Namespace, options: dict[str, Any]) -> Request:
    kept = {k: options[k] for k in ("set", "until", "only", "smoke", "rounds_only")}
    if options.get("schedule") is not None:
        kept["schedule"] = options["schedule"]
    return Request(
        file=options["file"],
        arguments=kept,
        start=options["start"],
        until=options["until"],
        only=options["only"],
        services=args.services,
        quiet=args.json,
        resume_command=f"tutelage resume {shlex.quote(_relative(options['file']))}",
    )


def _relative(path: str) -> str:
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def _say_why(plan: Plan, state: State, request: Request) -> None:
    """Say, before anything starts, why nodes run that ran before."""
    before = last_plan(state, plan.program)
    if before is None:
        return
    last = request.until or request.only
    asked = plan.upstream(plan.node(last).id) if last is not None else [n.id for n in plan]
    for node, status in statuses(plan, state, before).items():
        if node in asked and status.status in ("run", "resume") and status.reason:
            print(f"{node}: {status}", file=sys.stderr)


def _tell(args: argparse.Namespace, state: State, plan: Plan, finish: Finish, request: Request) -> None:
    from flows.summary import summary, view

    data = summary(state, finish.record, plan, request.resume_command)
    data["notes"], data["seconds"] = finish.notes, round(finish.seconds, 3)
    if args.json:
        print(json.dumps(data, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(view(data, finish.notes, finish.seconds))
