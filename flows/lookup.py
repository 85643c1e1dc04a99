"""From the words people use for a policy, a node or an evaluation to folders on disk. Reads only."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import registry
from flows.state import RunRecord, State
from specs.errors import StateError, UsageError
from specs.strict_json import parse

if TYPE_CHECKING:
    from tasks.tokens.tokenizer import Tokenizer

MANIFEST = "manifest.json"
ALIASES = ("champion", "previous", "challenger")


def near(word: str, known: list[str]) -> str:
    """Return "; did you mean …?", or what there is."""
    close = get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there is {', '.join(known[:12])}" if known else "; there is none yet"


def record_of(state: State, run: str) -> RunRecord:
    """Return an execution by its id, or the last one of a program. StateError names near ones."""
    if run in state.programs():
        found = state.last(run)
        if found is not None:
            return found
    known: list[str] = []
    for path in sorted(state.home.glob("programs/*/executions/*.json"), reverse=True):
        known.append(path.stem)
        if path.stem != run:
            continue
        program = path.parent.parent.name
        return _record(state, program, path)
    raise UsageError(
        f"no run is called {run!r} under {state.home}; expected a program's name or the id of an execution"
        f"{near(run, [*state.programs(), *known])}"
    )


def _record(state: State, program: str, path: Path) -> RunRecord:
    try:
        record = RunRecord(**parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as e:
        raise StateError(f"{path}: damaged record of a run ({e}); name another run") from e
    for event in state.events(program, record.execution):
        record.nodes[event["node"]] = {k: v for k, v in event.items() if k not in ("node", "at")}
    return record


def node_output(state: State, record: RunRecord, node: str) -> Path:
    """Return the output folder of a node of an execution. StateError where it has none."""
    if node not in record.nodes:
        raise UsageError(f"{record.program}: its run has no node {node!r}{near(node, list(record.nodes))}")
    key = record.nodes[node].get("run_key")
    folder = state.out(key) if key and state.receipt(key) is not None else None
    if folder is None:
        status = record.nodes[node].get("status", "unknown")
        raise UsageError(f"{record.program}: node {node} has no output ({status}); `tutelage run` makes it")
    return folder


def _plan(state: State, record: RunRecord) -> dict[str, Any]:
    plan = state.plan(record.plan)
    if plan is None:
        raise StateError(f"{record.program}: the plan of its last run is gone or damaged; run the program again")
    return plan


def policy_folder(state: State, what: str, program: str | None = None) -> Path:
    """Return the folder of a policy.

    `what` is a folder, an alias (`champion`, `previous`, `challenger`), `v3` of the registry, a stage of the
    program's last run, or `init`. Without `program` the program that ran last is meant. The files are not checked
    here: loading does so.
    """
    folder = Path(what)
    for candidate in (folder, folder / "policy", folder / "out" / "policy"):
        if (candidate / MANIFEST).is_file():
            return candidate
    program = program or next(iter(state.programs()), None)
    if program is None:
        raise UsageError(f"no policy is called {what!r}: it is no policy folder, and no program was run yet")
    if what in ALIASES or (what.startswith("v") and what[1:].isdigit()):
        return _registered(state, program, what)
    record = state.last(program)
    if record is None:
        raise UsageError(f"{program}: it was not run here yet, so there is no policy {what!r}; `tutelage run` it")
    policies: dict[str, str] = _plan(state, record)["policies"]
    if what not in policies:
        known = [*policies, *ALIASES]
        raise UsageError(
            f"{program}: no policy is called {what!r}; expected a stage, an alias or a folder{near(what, known)}"
        )
    return node_output(state, record, policies[what]) / "policy"


def _registered(state: State, program: str, what: str) -> Path:
    known = registry.load(state.home, program)
    version = known.alias(what) if what in ALIASES else known.get(int(what[1:]))
    if version is None:
        have = [*known.aliases, *(f"v{v.version}" for v in known.versions)]
        raise UsageError(f"{program}: the registry has no {what}{near(what, have)}")
    return registry.checked_folder(state.home, version)


def evaluations(state: State, run: str) -> dict[str, Path]:
    """Return set -> evaluation folder of what `run` names.

    `run` is an evaluation folder, `EXECUTION` (or a program's name) for the last stage that was evaluated on each
    set, or `EXECUTION/STAGE` for that stage.
    """
    folder = Path(run)
    for candidate in (folder, folder / "out"):
        if (candidate / "metrics.json").is_file():
            return {"": candidate}
    name, _, stage = run.partition("/")
    record = record_of(state, name)
    plan = _plan(state, record)
    order: list[str] = [stage] if stage else ["init", *plan["stages"]]
    found: dict[str, Path] = {}
    for policy in order:
        for node in plan["nodes"]:
            if node["kind"] != "evaluate" or node["id"] != f"eval.{policy}.{node['params']['set']}":
                continue
            if stage or record.nodes.get(node["id"], {}).get("status") != "skipped":  # a round that did not run
                found[node["params"]["set"]] = node_output(state, record, node["id"])
    if not found:
        asked = {n["id"].split(".")[1] for n in plan["nodes"] if n["kind"] == "evaluate"}
        if stage in plan["policies"]:
            some = ", ".join(p for p in plan["policies"] if p in asked) or "none"
            raise UsageError(
                f"{run}: no evaluation asked {stage} (evaluated: {some}); write evaluation: {{sets: [SET]}} to ask every stage"
            )
        raise UsageError(f"{run}: it has no evaluation{near(stage, list(plan['policies'])) if stage else ''}")
    return found


def tokenizer_of(
    state: State, folder: Path, node: str | None, record: RunRecord | None, policy: str | None = None
) -> "Tokenizer | None":
    """Return the tokenizer of the policy that is named, else of the one that a node read; None where it is not there."""
    from tasks.tokens.tokenizer import Tokenizer

    if policy is not None:
        where = policy_folder(state, policy, record.program if record else None)
    elif record is not None and node is not None:
        where = _policy_read(state, record, node)
    else:
        where = folder / "policy"
    path = where / "tokenizer.json" if where is not None else None
    return Tokenizer.load(path) if path is not None and path.is_file() else None


def _policy_read(state: State, record: RunRecord, node: str) -> Path | None:
    plan = state.plan(record.plan)
    nodes = {n["id"]: n for n in plan["nodes"]} if plan is not None else {}
    source = nodes.get(node, {}).get("inputs", {}).get("policy")
    return None if source is None else node_output(state, record, source) / "policy"


def records_of(state: State, program: str) -> Iterator[RunRecord]:
    """Yield the executions of a program, newest first."""
    for path in sorted((state.home / "programs" / program / "executions").glob("*.json"), reverse=True):
        yield _record(state, program, path)
