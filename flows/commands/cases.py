"""`tutelage cases`: the ledger of failures that rounds found: why each happened, and what became of it."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from flows import confirming, lookup, pools
from flows.answers import person
from flows.commands.bounds import at_least
from flows.lookup import near
from flows.state import RunRecord, State, find_home
from specs.errors import UsageError
from specs.flywheel import Cause
from specs.records import BadCase, Trajectory, case_from

EXAMPLES = {"cases": "tutelage cases list quickstart --cause argument --life open"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the sub-commands."""
    subs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    listed = subs.add_parser(
        "list", help="show the cases of a program", epilog="example: tutelage cases list quickstart --life open"
    )
    listed.add_argument("program", nargs="?", metavar="PROGRAM", help="the only one with cases where left out")
    listed.add_argument("--cause", choices=get_args(Cause), metavar="CAUSE", help=", ".join(get_args(Cause)))
    listed.add_argument("--status", choices=("suspected", "confirmed"))
    listed.add_argument("--life", choices=("open", "in_training", "fixed", "regressed"))
    listed.add_argument("--limit", type=at_least(1), default=20, help="how many to show; 20 where left out")
    shown = subs.add_parser(
        "show", help="show one case with its conversation", epilog="example: tutelage cases show train/desk-train-01"
    )
    shown.add_argument("id", metavar="ID", help="its id, or the beginning of it")
    shown.add_argument("--program", help="the only one with cases where left out")
    confirmed = subs.add_parser(
        "confirm",
        help="say that a suspected case is a failure, so that rounds learn from it",
        epilog='example: tutelage cases confirm train/desk-train-01 --reason "it never looked at the stock"',
    )
    dismissed = subs.add_parser(
        "dismiss",
        help="say that a case is a verifier's mistake, so that nothing learns from it",
        epilog='example: tutelage cases dismiss train/desk-train-01 --reason "the answer is right, in other words"',
    )
    confirmed.add_argument(
        "--cause", choices=get_args(Cause), metavar="CAUSE", help="the cause, where it is another one"
    )
    for sub in (confirmed, dismissed):
        sub.add_argument("id", metavar="ID", help="its id, or the beginning of it")
        sub.add_argument("--program", help="the only one with cases where left out")
        sub.add_argument("--reason", metavar="TEXT", default="", help="why; it is stored")
        sub.add_argument("--by", metavar="NAME", help="who says so (default: who is logged in)")
    for sub in (listed, shown, confirmed, dismissed):
        sub.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    return {"list": _list, "show": _show, "confirm": _answer, "dismiss": _answer}[args.what](args)


def _answer(args: argparse.Namespace) -> int:
    """Keep what a person says of a case, for the next round to see."""
    home = find_home()
    case = _one(args.id, _ledger(home, args.program))
    confirmed = args.what == "confirm"
    cause = args.cause if confirmed else None
    answer = confirming.give(home, case, confirmed=confirmed, by=args.by or person(), reason=args.reason, cause=cause)
    (changed,) = confirming.answered([case], [answer])
    if args.json:
        print(json.dumps({"id": case.id, "confirmed": confirmed, "by": answer.by, "reason": answer.reason,
                          "cause": changed.cause, "at": answer.at}, ensure_ascii=False))  # fmt: skip
        return 0
    became = "confirmed" if confirmed else "dismissed: a verifier's mistake"
    print(f"{case.id} is {became} by {answer.by} (cause {changed.cause})")
    print(f"the next round of {case.program} sees it: run it with `--refresh`, or let its schedule do so")
    return 0


def _ledger(home: Path, program: str | None) -> list[BadCase]:
    known = pools.programs(home)
    if program is None and len(known) > 1:
        raise UsageError(f"several programs have cases; expected one of {', '.join(known)}")
    program = program or next(iter(known), None)
    found = [] if program is None else pools.cases(home, program)
    if not found and program is not None and program not in known and known:
        raise UsageError(f"{program}: it has no cases here{near(program, known)}")
    cases = [case_from(c) for c in found]
    return cases if program is None else confirming.answered(cases, confirming.answers(home, program))


def _list(args: argparse.Namespace) -> int:
    cases = _ledger(find_home(), args.program)
    asked = {"cause": args.cause, "status": args.status, "life": args.life}
    chosen = [c for c in cases if all(v is None or getattr(c, k) == v for k, v in asked.items())]
    shown = chosen[: args.limit]
    if args.json:
        from specs.records import to_dict

        print(json.dumps({"cases": len(cases), "chosen": len(chosen), "counts": _counts(chosen),
                          "shown": [to_dict(c) for c in shown]}, ensure_ascii=False))  # fmt: skip
    elif not cases:
        print("no case was published yet; a round of a program's flywheel publishes what it found")
    else:
        _print(chosen, shown)
    return 0


def _counts(cases: Sequence[BadCase]) -> dict[str, dict[str, int]]:
    return {
        name: dict(sorted(Counter(str(getattr(c, name)) for c in cases).items()))
        for name in ("cause", "status", "life", "remedy")
    }


def _print(chosen: Sequence[BadCase], shown: Sequence[BadCase]) -> None:
    from rich.table import Table
    from rich.text import Text

    from flows.render import console

    by_cause = Table("cause", "cases", "confirmed", "open", "in training", "fixed", "regressed", box=None)
    for cause, count in Counter(c.cause for c in chosen).most_common():
        of = [c for c in chosen if c.cause == cause]
        lives = [str(sum(c.life == life for c in of)) for life in ("open", "in_training", "fixed", "regressed")]
        by_cause.add_row(cause, str(count), str(sum(c.status == "confirmed" for c in of)), *lives)
    rows = Table("id", "type", "cause", "sure", "turn", "status", "life", "remedy", "round", box=None)
    for c in shown:
        turn = "-" if c.first_wrong_turn is None else str(c.first_wrong_turn + 1)
        rows.add_row(
            Text(c.id), Text(c.problem_type), c.cause, f"{c.confidence:.2f}", turn, c.status,
            c.life.replace("_", " "), c.remedy or "-", str(c.round),
        )  # fmt: skip
    out = console()
    out.print(by_cause)
    out.print()
    out.print(rows)
    out.print(
        f"{len(chosen)} cases" + (f"; {len(shown)} shown, --limit shows more" if len(shown) < len(chosen) else "")
    )


def _show(args: argparse.Namespace) -> int:
    state = State(find_home())
    cases = _ledger(state.home, args.program)
    case = _one(args.id, cases)
    place = _place(state, case)
    if args.json:
        from specs.records import to_dict

        trajectory = None if place is None else to_dict(place[0])
        print(json.dumps({**to_dict(case), "trajectory": trajectory}, ensure_ascii=False))
        return 0
    print("\n".join(_lines(case)))
    if place is None:
        print("\nits conversation is gone: the run that it is of was removed")
        return 0
    from flows.conversation import conversation

    trajectory, record, node = place
    print("\n" + conversation(trajectory, lookup.tokenizer_of(state, state.home, node, record)))
    return 0


def _one(asked: str, cases: Sequence[BadCase]) -> BadCase:
    found = [c for c in cases if c.id == asked] or [
        c for c in cases if c.id.startswith(asked) or c.problem_id.startswith(asked)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no case is called {asked!r}{near(asked, [c.id for c in cases])}; see `tutelage cases list`")
    some = ", ".join(c.id for c in found[:5])
    raise UsageError(f"{asked!r} is the beginning of {len(found)} cases: {some}{' …' if len(found) > 5 else ''}")


def _place(state: State, case: BadCase) -> tuple[Trajectory, RunRecord, str] | None:
    """Return the trajectory of a case, and the run and node that made it; None where it is not kept any more."""
    from tasks.episodes.shards import read_shards

    node = case.policy.partition("/")[0]
    tried: set[Path] = set()
    for record in lookup.records_of(state, case.program):
        key = record.nodes.get(node, {}).get("run_key")
        folder = state.out(key) if key and state.receipt(key) is not None else None
        if folder is None or folder in tried or not (folder / "trajectories").is_dir():
            continue
        tried.add(folder)
        for trajectory in read_shards(folder / "trajectories"):
            versions = trajectory.policy_versions
            if trajectory.id == case.trajectory_id and versions and versions[0][0] == case.policy:
                return trajectory, record, node
    return None


def _lines(case: BadCase) -> list[str]:
    turn = "no turn can be blamed" if case.first_wrong_turn is None else f"first wrong turn {case.first_wrong_turn + 1}"
    by = f" by {case.confirmed_by}" if case.confirmed_by else ""
    told: dict[str, Any] = {
        "cause": f"{case.cause} ({case.confidence:.2f} sure; {turn})",
        "status": f"{case.status}{by}",
        "evidence": json.dumps(case.evidence, ensure_ascii=False),
        "remedy": f"{case.remedy or 'none yet'}; {case.life.replace('_', ' ')}",
        "problem": f"{case.problem_id} ({case.problem_type}) of {case.set}, whose role is {case.role}",
        "policy": case.policy,
        "round": case.round,
    }
    if case.regression is not None:
        told["held back"] = f"{case.regression}, in the regression pool in its place"
    return [case.id, *(f"  {name:<10} {value}" for name, value in told.items())]
