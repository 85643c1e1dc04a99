"""An answer to a held gate as a short Prefect flow of its own: who said what, when and why."""

import os
import sys
from pathlib import Path
from typing import Any

from flows.answers import Answer
from flows.deployments import settings
from flows.showing import slug
from specs.errors import ServiceError

NAMES = {"approved": "Approved", "rejected": "Rejected"}
_SECONDS = 30.0


def show(home: Path, url: str, answer: Answer) -> str:
    """Run the flow in a process of its own, in bounded time, and return its name. ServiceError where that fails."""
    import json
    from dataclasses import asdict

    from tasks.processes import run

    environment = {**os.environ, **settings(home, url)}
    try:
        done = run(
            [sys.executable, "-m", "flows.answering"],
            seconds=_SECONDS,
            env=environment,
            text=json.dumps(asdict(answer)),
        )
    except (OSError, TimeoutError) as e:
        raise ServiceError(f"the flow that shows it did not run ({e})") from e
    if done.code != 0:
        raise ServiceError(f"the flow that shows it ended with status {done.code}: {done.err.strip()[-200:]}")
    return done.out.strip()


def main() -> None:
    """Read an answer from stdin and be its flow."""
    import json

    answer = Answer(**json.load(sys.stdin))
    name = f"{answer.program} {answer.gate} {answer.at}"
    _flow(answer, name)
    sys.stdout.write(f"{name}\n")


def _flow(answer: Answer, name: str) -> None:
    from prefect import flow, tags
    from prefect.artifacts import create_markdown_artifact
    from prefect.client.schemas.objects import State, StateType

    verb = "approve" if answer.verdict == "approved" else "reject"

    @flow(name=verb, flow_run_name=name, persist_result=False, retries=0)
    def record(program: str, gate: str, by: str, reason: str) -> Any:
        rows = {"gate": gate, "candidate": answer.candidate, "by": by, "at": answer.at, "why": reason or "-"}
        lines = [f"**{answer.verdict}**", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())]
        create_markdown_artifact(
            "\n".join(lines), key=slug(f"{program}-{gate}-answer"), description=f"{program}: {gate} {answer.verdict}"
        )
        return State(type=StateType.COMPLETED, name=NAMES[answer.verdict], message=answer.sentence)

    whole: Any = record
    with tags("tutelage", answer.program):
        whole(answer.program, answer.gate, answer.by, answer.why, return_state=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # client threads must not hold the process
