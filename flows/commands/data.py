"""`tutelage data`: versions of data sets and trajectories."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows import datasets
from flows.datasets import DataVersion
from flows.state import find_home
from specs.errors import ServiceError

EXAMPLES = {"data": "tutelage data checkout quickstart/demos@v1 demos"}


def configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the sub-commands."""
    subs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    listed = subs.add_parser("list", help="show the newest version of everything published")
    shown = subs.add_parser("show", help="show every version of one name")
    checked = subs.add_parser("checkout", help="copy a version into a folder")
    synced = subs.add_parser("sync", help="send what MLflow and DVC were not told yet")
    shown.add_argument("name", metavar="NAME", help="for example quickstart/demos, or demos@v1")
    checked.add_argument("name", metavar="NAME[@VERSION]", help="the newest where VERSION is left out")
    checked.add_argument("folder", metavar="DIR", type=Path, help="new or empty")
    for sub in (listed, shown, checked, synced):
        sub.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    return {"list": _list, "show": _show, "checkout": _checkout, "sync": _sync}[args.what](args)


def _list(args: argparse.Namespace) -> int:
    found = datasets.latest(find_home())
    if args.json:
        print(json.dumps([asdict(v) for v in found]))
    elif not found:
        print("nothing is published yet; a run publishes its data sets and trajectories")
    else:
        _print(found)
    return 0


def _show(args: argparse.Namespace) -> int:
    home = find_home()
    found = datasets.find(home, args.name)
    versions = [found] if "@" in args.name else datasets.history(home, found.name)
    if args.json:
        print(json.dumps([asdict(v) for v in versions]))
        return 0
    _print(versions)
    about = ", ".join(f"{k} {v}" for k, v in sorted(found.about.items()))
    print(f"\nv{found.version}: {about}\nDVC {found.md5}, sha256 {found.digest}")
    repo = datasets.repository_to_name(home)
    where = "" if repo is None else f', repo="{repo}"'
    print(f'read it: dvc.api.read("{found.name}/FILE"{where}, rev="{found.commit}")')
    return 0


def _print(versions: list[DataVersion]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "version", "commit", "files", "size", "node", box=None)
    for v in versions:
        table.add_row(v.name, f"v{v.version}", v.commit[:10], str(v.files), _size(v.size), str(v.about.get("node", "")))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _checkout(args: argparse.Namespace) -> int:
    home = find_home()
    version = datasets.find(home, args.name)
    count = datasets.checkout(home, version, args.folder, say=lambda text: print(text, file=sys.stderr))
    if args.json:
        print(json.dumps({**asdict(version), "folder": str(args.folder), "copied": count}))
    else:
        print(f"{version.name} v{version.version}: {count} files in {args.folder}")
    return 0


def _words(name: str, s: dict[str, Any]) -> str:
    if not s["done"]:
        return f"{name}: not sent: {', '.join(s['left'])}"
    return "\n".join(s["errors"] or [f"{name}: sent", *s["said"]])


def _sync(args: argparse.Namespace) -> int:
    from flows.recorder import sync

    status = sync(find_home())
    left = {name: s for name, s in status.items() if not s["done"]}
    if args.json:
        print(json.dumps(status))
    elif not status:
        print("everything was sent already")
    for name, s in status.items():
        if not args.json:
            print(_words(name, s))
    if left:
        raise ServiceError(
            "; ".join(dict.fromkeys(e for s in left.values() for e in s["errors"])) or "not all was sent"
        )
    return 0
