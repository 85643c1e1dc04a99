"""Whether there is anything new for a scheduled run: what this program's own runs changed is no news."""

from flows import pools
from flows.compile import compile
from flows.nodes import Plan
from flows.registry import load
from flows.resolution import Resolution
from flows.resolve import resolve
from flows.state import State
from specs.errors import StateError
from specs.loader import LoadedProgram


def settled_plan(loaded: LoadedProgram, state: State, *, rounds_only: bool = False) -> Plan | None:
    """Return the plan of the last resolution where all of it is done and nothing changed outside; else None.

    After a run of rounds only the main part may not know what is new: only another such run has nothing to do then.

    Files, weights, packages, the environment and answers are looked at anew. A champion or a look at a set that the
    program's own runs made is no news; one that a person made is, and so is what a person said of a case.
    """
    last = state.last(loaded.program.program)
    if last is None or _a_person_promoted(state, last.program, int(last.resolution.get("promotions", 0))):
        return None
    before = bool(last.resolution.get("rounds_only"))
    if before and not rounds_only:
        return None
    resolution = resolve(loaded, state_view=state, rounds_only=before)
    if not resolution.reused or _a_person_judged(state, last.program, resolution):
        return None
    plan = compile(loaded.program, resolution)
    return plan if _done(plan, state) else None


def _a_person_promoted(state: State, program: str, known: int) -> bool:
    """Return whether a person changed the champion after aliases were looked up, as the registry held `known` changes."""
    promotions = load(state.home, program).promotions
    later = promotions[known:] if known <= len(promotions) else promotions  # a registry that was begun anew
    return any(p.key.startswith(("person:", "rollback:")) for p in later)


def _a_person_judged(state: State, program: str, resolution: Resolution) -> bool:
    """Return whether people said more of cases than the rounds of that resolution read; lives alone are no answer."""
    if pools.ANSWERED not in resolution.pools:
        return False
    read = resolution.pools[pools.ANSWERED]
    since = 0 if read is None else int(read["version"])
    found = pools.versions(state.home, program, pools.ANSWERED)
    return any(v.version > since and not v.about.get("lives") for v in found)


def _done(plan: Plan, state: State) -> bool:
    """Return whether every node has a valid receipt."""
    digests: dict[str, str] = {}
    for node in plan.nodes:
        key = state.run_key(node, {name: digests[i] for name, i in node.inputs.items()})
        try:
            receipt = state.receipt(key)
        except StateError:
            return False
        if receipt is None:
            return False
        digests[node.id] = receipt.output_digest
    return True
