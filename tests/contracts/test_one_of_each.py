"""One way to write durably, one lease, one ledger, one boundary, one shutdown: nobody else does it by hand."""

import ast
from collections.abc import Iterator

import pytest

from tests.contracts.sources import ROOT, tree

FOREIGN = ("httpx", "requests", "prefect", "mlflow", "dvc", "sqlalchemy")
ANSWERS = ("ObjectNotFound",)
"""What a client raises to say that something is not there: an answer, not a failure."""

ONLY_IN: dict[str, dict[str, str]] = {
    "flushes or renames": {"tasks/files.py": "the durable writer"},
    "locks a file": {"tasks/leases.py": "the lease"},
    "starts or signals a process": {
        "tasks/processes.py": "the one start, the one shutdown",
        "tasks/childguard.py": "stands alone before every foreign program, and ends it from outside our code",
    },
    "forks": {
        "flows/nursery.py": "forks the processes of nodes; they are ended by `processes.end`",
        "tasks/childguard.py": "is the parent of a foreign program",
    },
    "catches everything": {
        "tasks/boundary.py": "the boundary",
        "flows/nursery.py": "the end of a forked process, which writes its failure down",
    },
    "catches what a service's client raises": {
        "tasks/teachers/client_openai.py": "what a request came to says whether it is asked again and who pays",
    },
    "writes in place": {
        "tasks/files.py": "the durable writer and the ledger",
        "tasks/leases.py": "who holds a lease",
        "tasks/policy/served.py": "inside what the writer puts in place",
        "tasks/learning/checkpoints.py": "into a folder that the writer puts in place",
        "flows/commands/evaluate.py": "a link in a folder that goes when the command ends",
        "flows/datasets.py": "the worktree of data versions: in force by its commit",
        "tasks/faults.py": "the counter of a test",
        "flows/cli.py": "the traceback of a mistake of our own, in a new temporary file",
        "flows/nursery.py": "a pipe",
        "flows/launch.py": "a node's log",
        "flows/child.py": "a node's log",
        "flows/orchestrate.py": "a log",
        "flows/recorder.py": "a log",
        "flows/services.py": "a log",
        "flows/scheduled.py": "a log",
        "flows/work/data.py": "a node's output: flushed, and in force, by its receipt",
        "flows/commands/init.py": "a file of a person's, made once",
        "flows/commands/schema.py": "a file of a person's",
    },
}


NAMED = {
    "os.fsync": "flushes or renames",
    "os.fdatasync": "flushes or renames",
    "os.replace": "flushes or renames",
    "os.rename": "flushes or renames",
    "shutil.move": "flushes or renames",
    "os.kill": "starts or signals a process",
    "os.killpg": "starts or signals a process",
    "os.popen": "starts or signals a process",
    "os.posix_spawn": "starts or signals a process",
    "os.system": "starts or signals a process",
    "os.fork": "forks",
    "os.link": "writes in place",
    "os.symlink": "writes in place",
    "shutil.copy": "writes in place",
    "shutil.copy2": "writes in place",
    "shutil.copyfile": "writes in place",
    "shutil.copyfileobj": "writes in place",
    "shutil.copytree": "writes in place",
}
"""Functions that only one module may name, called or handed on."""


_OPENS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
_WRITES = ("write_text", "write_bytes", "save_file", "symlink_to", "hardlink_to")


def _name(node: ast.expr) -> str:
    return ast.unparse(node)


def _handled(node: ast.ExceptHandler) -> list[str]:
    if node.type is None:
        return ["BaseException"]
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return [_name(k) for k in kinds]


def _imported(module: ast.Module) -> dict[str, str]:
    """Return names and the module that each was imported from."""
    found: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {a.asname or a.name: node.module for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname or a.name: a.name for a in node.names}
    return found


def _call(node: ast.Call) -> str | None:
    last = _name(node.func).rpartition(".")[2]
    if isinstance(node.func, ast.Attribute):
        if last == "rename" or (last == "replace" and len(node.args) == 1 and not node.keywords):
            return "flushes or renames"
        if last in ("send_signal", "terminate"):
            return "starts or signals a process"
    modes = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
    opens = last in ("open", "fdopen") and any(isinstance(m, str) and set(m) & set("wax") and len(m) < 4 for m in modes)
    flags = {_name(n).removeprefix("os.") for a in node.args[1:] for n in ast.walk(a) if isinstance(n, ast.Attribute)}
    opens |= bool(flags & _OPENS) and last == "open" and _name(node.args[0]) != "os.devnull"
    return "writes in place" if opens or last in _WRITES else None


def broken(module: ast.Module) -> Iterator[str]:
    """Yield the rules that a module breaks, unless it is the one that may."""
    imported = _imported(module)
    if "fcntl" in imported.values():
        yield "locks a file"
    if "subprocess" in imported.values() or "multiprocessing" in imported.values():
        yield "starts or signals a process"
    for node in ast.walk(module):
        named = f"{imported.get(node.id)}.{node.id}" if isinstance(node, ast.Name) else None
        named = _name(node) if isinstance(node, ast.Attribute) else named
        if named in NAMED:
            yield NAMED[named]
        if isinstance(node, ast.Call) and (rule := _call(node)):
            yield rule
        if isinstance(node, ast.ExceptHandler):
            yield from _caught(node, imported)


def _caught(node: ast.ExceptHandler, imported: dict[str, str]) -> Iterator[str]:
    for kind in _handled(node):
        if kind in ("Exception", "BaseException"):
            yield "catches everything"
        foreign = imported.get(kind.partition(".")[0], "").partition(".")[0] in FOREIGN
        if foreign and kind not in ANSWERS:
            yield "catches what a service's client raises"


def test_nobody_does_by_hand_what_there_is_one_mechanism_for() -> None:
    found: dict[str, set[str]] = {rule: set() for rule in ONLY_IN}
    for folder in ("flows", "tasks", "specs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for rule in broken(tree(path)):
                found[rule].add(path.relative_to(ROOT).as_posix())
    wrong = {rule: sorted(files - set(ONLY_IN[rule])) for rule, files in found.items() if files - set(ONLY_IN[rule])}
    assert not wrong, f"use tasks.files, tasks.leases, tasks.processes, tasks.boundary instead: {wrong}"
    idle = {rule: sorted(set(allowed) - found[rule]) for rule, allowed in ONLY_IN.items() if set(allowed) - found[rule]}
    assert not idle, f"these need no exception any more: {idle}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import os\nos.fsync(3)", "flushes or renames"),
        ("a.rename(b)", "flushes or renames"),
        ("path.replace(other)", "flushes or renames"),
        ("import fcntl", "locks a file"),
        ("from subprocess import Popen", "starts or signals a process"),
        ("import os\nos.killpg(3, 9)", "starts or signals a process"),
        ("child.terminate()", "starts or signals a process"),
        ("import os\nos.fork()", "forks"),
        ("try:\n    f()\nexcept (ValueError, Exception):\n    pass", "catches everything"),
        ("try:\n    f()\nexcept:\n    pass", "catches everything"),
        ("import httpx\ntry:\n    f()\nexcept httpx.HTTPError:\n    pass", "catches what a service's client raises"),
        (
            "def g():\n    from dvc.exceptions import DvcException as D\n    try:\n        f()\n    except (D, OSError): pass",
            "catches what a service's client raises",
        ),
        ("path.open('ab')", "writes in place"),
        ("path.write_text('')", "writes in place"),
        ("import shutil\nshutil.copyfile(a, b)", "writes in place"),
        ("import shutil\nf(copy_function=shutil.copy2)", "writes in place"),
        ("from shutil import copytree\ncopytree(a, b)", "writes in place"),
        ("save_file(tensors, path)", "writes in place"),
        ("import os\nos.open(path, os.O_WRONLY | os.O_CREAT)", "writes in place"),
        ("import os\nos.link(a, b)", "writes in place"),
        ("path.symlink_to(other)", "writes in place"),
    ],
)
def test_what_the_rule_forbids_is_seen(text: str, rule: str) -> None:
    assert rule in set(broken(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "'a'.replace('a', 'b')",
        "path.open('rb')",
        "open(path)",
        "os.open(path, os.O_RDONLY)",
        "os.open(os.devnull, os.O_RDWR)",
        "except_ = 1",
        "replace(x, a=1)",
    ],
)
def test_what_it_allows_is_not(text: str) -> None:
    assert not set(broken(ast.parse(text)))
