"""`tutelage up` and `tutelage down`: Prefect, a worker and MLflow that stay."""

import argparse
import json
import os
import sys
from pathlib import Path

from flows import services, worker
from flows.commands.bounds import at_least
from flows.state import State, find_home
from specs.errors import ServiceError
from specs.redaction import without_secrets

EXAMPLES = {"up": "tutelage up --no-worker", "down": "tutelage down"}
_NAMED_BY = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
"""Variables that name a server of somebody else."""


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    if name == "up":
        parser.add_argument("--no-worker", action="store_true", help="no Prefect worker")
        for service, port in services.PORTS.items():
            parser.add_argument(
                f"--{service}-port", type=at_least(1, 65535), metavar="PORT", help=f"port of {service} (default {port})"
            )


def run(args: argparse.Namespace) -> int:
    """Start or stop what is kept running."""
    home = find_home()
    if args.command == "down":
        said = services.down(home)
        print(
            json.dumps({"stopped": said}) if args.json else "\n".join(said) or "nothing that `tutelage up` started runs"
        )
        return 0
    return _up(args, State(home))


def _up(args: argparse.Namespace, state: State) -> int:
    state.prepare()
    home = state.home
    for text in services.reconcile(home):
        print(text, file=sys.stderr)
    before = {s.name for s in services.records(home) if s.alive and s.kept}
    uses: list[services.Use] = []
    try:
        for name in services.PORTS:
            uses.append(_server(home, name, getattr(args, f"{name}_port")))
        for use in uses:
            if use.ours:
                use.wait_ready()
        if not args.no_worker:
            worker.start(home)
    except ServiceError:
        services.down(home, {u.name for u in uses if u.ours} - before)
        raise
    _show(uses, worker.uses(home), as_json=args.json)
    return 0


def _server(home: Path, name: str, port: int | None) -> services.Use:
    """Return the server that the environment names, where it can be used and none is asked for here; else ours."""
    found = services.read(home, name)
    alive = found is not None and found.alive
    variable = _NAMED_BY[name]
    if url := os.environ.get(variable):
        if not alive and port is None and (not url.startswith("http") or services.answers(url, name, timeout=3.0)):
            return services.Use(home, name, url, ours=False)
        print(f"{variable} is set: runs use {without_secrets(url)}, whatever is started here", file=sys.stderr)
    return services.start(home, name, port=port or (None if alive else services.PORTS[name]), keep=True)


def _show(uses: list[services.Use], used: dict[str, str] | None, *, as_json: bool) -> None:
    if as_json:
        shown = {u.name: without_secrets(u.url) for u in uses}
        print(json.dumps({**shown, "worker": used, "bound_to": services.HOST}))
        return
    for use in uses:
        named = "" if use.ours else f", named by {_NAMED_BY[use.name]} and not started here"
        print(f"{use.name:<8} {without_secrets(use.url).removesuffix('/api')}{named}")
    if used is not None:
        print(f"worker   takes this project's runs from {used['prefect']}, their metrics go to {used['mlflow']}")
    if any(u.ours for u in uses):
        print(f"bound to {services.HOST} only, without passwords; stop them with `tutelage down`")
