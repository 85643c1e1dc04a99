"""A driver process for the fault tests: the real machinery on the reference plan. `python -m tests.faults.driver HOME`."""

import json
import os
import sys
from pathlib import Path

from flows.drive import Request, drive
from flows.leases import driver_lease
from flows.reconcile import reconcile
from flows.state import State
from specs.errors import TutelageError
from tests.faults.bodies import campaign_entry, entry_for
from tests.faults.plans import campaign, reference


def main(home: str) -> int:
    options = json.loads(os.environ.get("FAULT_OPTIONS", "{}"))
    if "campaign" in options:
        plan, entry = campaign(**options["campaign"]), campaign_entry
    else:
        plan = reference(options.get("train"), options.get("gate"), **options.get("budget", {}))
        entry = entry_for
    state = State(Path(home))
    state.prepare()
    folder = state.program(plan.program)
    folder.mkdir(exist_ok=True)
    request = Request(
        "reference.yaml",
        services=False,
        entry_for=entry,
        preload=tuple(options.get("preload", ())),
        **options.get("request", {}),
    )
    try:
        with driver_lease(folder / "lease", plan.program):
            for text in reconcile(state, plan.program):
                print(text, file=sys.stderr)
            finish = drive(plan, state, request)
    except TutelageError as e:
        print(f"tutelage: {e}", file=sys.stderr)
        return e.exit_code
    for node, end in finish.ends.items():
        print(node, end.status, end.reason)
    for note in finish.notes:
        print("note:", note, file=sys.stderr)
    return finish.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
