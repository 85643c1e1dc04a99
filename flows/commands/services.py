"""`tutelage up` and `tutelage down`: Prefect, a worker and MLflow that stay."""

import argparse
import json
import os
import sys

from flows import services
from flows.commands.bounds import at_least
from flows.state import State, find_home
from specs.errors import ServiceError

EXAMPLES = {"up": "tutelage up --no-worker", "down": "tutelage down"}


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
    ports = {"prefect": args.prefect_port, "mlflow": args.mlflow_port}
    if url := os.environ.get("PREFECT_API_URL"):
        print(f"PREFECT_API_URL is set: runs use {url}, not the server started here", file=sys.stderr)
    before = {s.name for s in services.records(home) if s.alive and s.kept}
    uses: list[services.Use] = []
    try:
        for name, default in services.PORTS.items():
            running = services.read(home, name)
            port = ports[name] or (None if running is not None and running.alive else default)
            uses.append(services.start(home, name, port=port, keep=True))
        for use in uses:
            use.wait_ready()
        if not args.no_worker:
            uses.append(services.start(home, "worker", keep=True))
    except ServiceError:
        services.down(home, {u.name for u in uses} - before)
        raise
    shown = {u.name: u.url for u in uses if u.name != "worker"}
    if args.json:
        print(json.dumps({**shown, "worker": not args.no_worker, "bound_to": services.HOST}))
        return 0
    for name, url in shown.items():
        print(f"{name:<8} {url.removesuffix('/api')}")
    if not args.no_worker:
        print("worker   takes flow runs of the work pool `tutelage`")
    print(f"bound to {services.HOST} only, without passwords; stop them with `tutelage down`")
    return 0
