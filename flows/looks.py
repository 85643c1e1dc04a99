"""How often evaluation sets were asked by gates: each policy asked about is a look, and each look spends alpha."""

import json
from pathlib import Path
from typing import Any

from flows.durable import Ledger
from specs.errors import StateError


def earlier_looks(home: Path, program: str) -> dict[str, list[str]]:
    """Return, for the plan key of each data set, the digests of the policies that gates asked it about, in order.

    Read from the gate records of the program's runs; a gate that decided nothing because the candidate was the
    champion already, or because the set was used up, spent nothing.
    """
    found: dict[str, list[str]] = {}
    plans: dict[str, Any] = {}
    for path in sorted((home / "programs" / program / "executions").glob("*.json")):
        run = _read(path)
        if not isinstance(run, dict) or not isinstance(run.get("plan"), str):
            continue
        digest = run["plan"]
        if digest not in plans:
            plans[digest] = _gates(_read(home / "plans" / f"{digest}.json"))
        ended = _ended(run, path.with_suffix(".jsonl"))
        for gate, keys in plans[digest].items():
            candidate = _candidate(home, ended.get(gate) or {})
            if candidate is None:
                continue
            for key in keys:
                asked = found.setdefault(key, [])
                if candidate not in asked:
                    asked.append(candidate)
    return found


def _gates(plan: Any) -> dict[str, list[str]]:
    """Return gate node -> plan keys of the sets it asks."""
    if not isinstance(plan, dict):
        return {}
    keys = {n["id"]: n["plan_key"] for n in plan["nodes"]}
    gates = [n for n in plan["nodes"] if n["kind"] == "gate"]
    return {n["id"]: [keys[f"data.{s}"] for s in n["params"]["sets"]] for n in gates}


def _ended(run: dict[str, Any], ledger: Path) -> dict[str, Any]:
    """Return how nodes ended; of a run that was killed, its ledger alone says so."""
    ended = dict(run.get("nodes") or {})
    try:
        ended |= {e["node"]: e for e in Ledger(ledger) if "node" in e}
    except StateError:  # damaged: what the record says is left
        return ended
    return ended


def _candidate(home: Path, end: dict[str, Any]) -> str | None:
    record = _read(home / "nodes" / str(end.get("run_key")) / "out" / "gate.json")
    if not isinstance(record, dict) or record.get("answer") in ("already_promoted", "superseded"):
        return None
    spent = record.get("look", 1) <= record.get("looks", 1)
    return record.get("candidate_digest") if spent else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
