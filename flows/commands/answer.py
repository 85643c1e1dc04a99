"""`tutelage approve` and `tutelage reject`: a person answers a held gate, for the next run to see."""

import argparse
import json
import re
import shlex
import sys
from dataclasses import asdict

from flows import answers
from flows.answers import Answer, HeldGate, Verdict
from flows.commands.status import last_record
from flows.state import RunRecord, State, find_home
from specs.errors import ServiceError, UsageError

EXAMPLES = {
    "approve": 'tutelage approve quickstart ship --evidence 3f9a1c0b52d74e88 --reason "read fifty conversations"',
    "reject": 'tutelage reject quickstart ship --evidence 3f9a1c0b52d74e88 --reason "it invents order numbers"',
}
_VERDICTS: dict[str, Verdict] = {"approve": "approved", "reject": "rejected"}
_PREFIX = re.compile(r"[0-9a-f]{8,64}")


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("program", metavar="PROGRAM", help="name or file of the program")
    parser.add_argument("gate", nargs="?", help="the gate; may be left out where one alone is held")
    parser.add_argument(
        "--evidence",
        metavar="DIGEST",
        help="the evidence that was looked at, as `status` names it (8 digits or more); refused where the gate asks "
        "about another by now",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; it is stored")
    parser.add_argument("--by", metavar="NAME", help="who says so (default: who is logged in)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Keep the answer, show it in Prefect where a server runs, and say how to go on."""
    state = State(find_home())
    record = last_record(state, args.program)
    held = answers.held_gates(state, record.program)
    gate = _chosen(held, record.program, args.gate)
    _check_evidence(args.evidence, gate, record)
    if not args.json:
        print(f"{record.program}: {gate.words}", flush=True)
    known = gate.answer is not None
    verdict = _VERDICTS[args.command]
    answer = answers.give(state, record.program, gate, verdict, by=args.by or answers.person(), why=args.reason)
    shown = _show(state, answer)
    command = _how_to_go_on(state, record, gate)
    if args.json:
        print(
            json.dumps(
                {**asdict(answer), "sentence": answer.sentence, "known": known, "prefect": shown, "next": command}
            )
        )
        return 0
    print(f"{record.program}: {gate.gate}{' already' if known else ''} {answer.sentence}")
    then = "promotes" if verdict == "approved" else "lets the gate fail"
    print(f"the next run {then}{'' if gate.candidate is None else f' ({gate.candidate})'}; now: {command}")
    return 0


def _how_to_go_on(state: State, last: RunRecord, gate: HeldGate) -> str:
    """Return the command that comes to the gate again; `resume` repeats what the last run was asked for."""
    asked = next((r.arguments for r in state.latest(last.program) if r.execution == gate.execution), {})
    part = any(last.arguments.get(k) != asked.get(k) for k in ("set", "until", "only"))
    if not part:
        return f"tutelage resume {last.file}"
    return shlex.join(["tutelage", "run", last.file, *(w for s in asked.get("set") or [] for w in ("--set", s))])


def _chosen(held: list[HeldGate], program: str, wanted: str | None) -> HeldGate:
    names = [g.gate.removeprefix("gate.") for g in held]
    if not held:
        raise UsageError(f"{program}: no gate waits for a person; see `tutelage status {program}`")
    if wanted is None:
        if len(held) == 1:
            return held[0]
        raise UsageError(f"{program}: {len(held)} gates are held; name one of {', '.join(names)}")
    for gate in held:
        if wanted in (gate.gate, gate.gate.removeprefix("gate.")):
            return gate
    raise UsageError(f"{program}: no held gate is called {wanted!r}; held: {', '.join(names)}")


def _check_evidence(wanted: str | None, gate: HeldGate, record: RunRecord) -> None:
    """Raise UsageError where a newer run asks about other evidence than was looked at."""
    if wanted is None:
        return
    prefix = wanted.lower()
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"--evidence: found {wanted!r}, expected the first 8 to 64 hexadecimal digits of a digest")
    if not gate.evidence.startswith(prefix):
        yes, no = answers.commands(record.program, gate)
        raise UsageError(
            f"{record.program}: --evidence {wanted!r} is not what {gate.gate} asks about now, so nothing was stored. "
            f"Held in execution {gate.execution}: {gate.words}. Look at that, then {yes}, or {no}"
        )


def _show(state: State, answer: Answer) -> str | None:
    """Show the answer as a flow run of its own; return the name of that, None where no server runs."""
    from flows.answering import show
    from flows.deployments import server

    try:
        url = server(state.home)
    except ServiceError as e:  # the answer is kept; nobody has to be able to see it
        print(f"not shown in Prefect: {e}", file=sys.stderr)
        return None
    if url is None:
        return None
    try:
        return show(state.home, url, answer)
    except ServiceError as e:
        print(f"not shown in Prefect: {e}", file=sys.stderr)
        return None
