"""Body of `data.published`: the version of a pool that the program was resolved to, as a data set."""

import json
from collections import Counter

from flows import pools
from flows.context import NodeContext, Outcome
from flows.work.promotion import home_of
from tasks.files import write_durable, write_json


def published(node: NodeContext) -> Outcome:
    """Write `records.jsonl` and `summary.json`; both are empty where nothing was published yet."""
    version = node.params["version"]
    rows = [] if version is None else pools.records(home_of(node), version)
    lines = "".join(json.dumps(r, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n" for r in rows)
    write_durable(node.out / "records.jsonl", lines)
    by_type = dict(sorted(Counter(r["type"] for r in rows).items()))
    write_json(
        node.out / "summary.json",
        {"records": len(rows), "by_type": by_type, "version": None if version is None else version["version"]},
    )
    note = f"{node.params['pool']}: nothing was published yet, so it is empty"
    return Outcome(metrics={"records": float(len(rows))}, notes=[note] if version is None else [])
