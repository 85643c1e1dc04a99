"""The command line: `tutelage COMMAND`. Each command is a module of `flows.commands`, imported when asked for."""

import argparse
import contextlib
import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType

from specs.errors import TutelageError

# command -> (module, one line of help); the order is the order of `--help`
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("flows.commands.init", "write a first program"),
    "check": ("flows.commands.check", "find every mistake of a program"),
    "plan": ("flows.commands.plan", "show what would run, what is reused and why, and what gates can see"),
    "run": ("flows.commands.run", "run a program"),
    "resume": ("flows.commands.run", "go on with a run that was stopped"),
    "status": ("flows.commands.status", "show the nodes of the last run"),
    "logs": ("flows.commands.logs", "show a node's log"),
    "why": ("flows.commands.why", "say why a node would run or is reused"),
    "evaluate": ("flows.commands.evaluate", "ask a policy a set of problems"),
    "try": ("flows.commands.try_problem", "let a policy solve one problem, live"),
    "inspect": ("flows.commands.inspect_trajectories", "show a trajectory as a conversation"),
    "compare": ("flows.commands.compare", "compare two runs, paired by problem"),
    "cases": ("flows.commands.cases", "list or show the failures that rounds found, their causes and remedies"),
    "data": ("flows.commands.data", "list, show or check out versions of data sets"),
    "promote": ("flows.commands.promote", "make a policy the champion"),
    "rollback": ("flows.commands.promote", "make the previous champion the champion again"),
    "export": ("flows.commands.export", "write a policy or trajectories for other tools"),
    "approve": ("flows.commands.answer", "say yes to a gate that is held for a person"),
    "reject": ("flows.commands.answer", "say no to a gate that is held for a person"),
    "schedule": ("flows.commands.schedule", "let Prefect run a program at the times that it declares"),
    "up": ("flows.commands.services", "keep Prefect, a worker and MLflow running"),
    "down": ("flows.commands.services", "stop what `up` started"),
    "doctor": ("flows.commands.doctor", "look at the machine and at what is kept, and say what to do"),
    "schema": ("flows.commands.schema", "print the JSON Schema of a program"),
}


def parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the module of `command` is imported."""
    top = argparse.ArgumentParser(
        prog="tutelage",
        description="Run whole post-training programs of LLM agents from one YAML file.",
        epilog="example: tutelage check specs/programs/quickstart.yaml",
    )
    subs = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        if name == command:
            loaded = import_module(module)
            sub = subs.add_parser(
                name,
                help=text,
                description=text[0].upper() + text[1:] + ".",
                epilog=f"example: {loaded.EXAMPLES[name]}",
            )
            loaded.configure(sub, name)
            sub.set_defaults(run=loaded.run)
        else:
            subs.add_parser(name, help=text)
    return top


def _without_plugins() -> None:
    """Let pydantic look for no plugins, as none is used: that takes 40 ms, and importing what looks for them 20 ms more.

    Where pydantic names that module otherwise, nothing is lost but these.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__" and "pydantic" not in sys.modules:
        none = ModuleType("pydantic.plugin._loader")
        none.__dict__["get_plugins"] = tuple
        sys.modules[none.__name__] = none


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. No error is shown as a traceback; an unforeseen one exits 1."""
    if argv is None:
        sys.excepthook = _unforeseen
    _without_plugins()
    argv = sys.argv[1:] if argv is None else argv
    command = next((a for a in argv if a in COMMANDS), None)
    args = parser(command).parse_args(argv)
    try:
        return int(args.run(args))
    except TutelageError as e:
        print(f"tutelage: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("tutelage: interrupted; what is done is kept, the same command goes on", file=sys.stderr)
        return 4
    except BrokenPipeError:  # the reader of what was printed has gone (`… | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush is quiet too
        return 0
    except OSError as e:
        print(f"tutelage: {_refused(e)}", file=sys.stderr)
        return 5


def _refused(error: OSError) -> str:
    """Return what a person is told when the system refused a file, a folder or a process."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        from tasks.files import disk_error

        return str(disk_error(error, Path(str(error.filename or "."))))
    where = f"{error.filename}: " if error.filename else ""
    return (
        f"{where}{error.strerror or error}; what is done is kept: mend the path, its owner or its permissions and run "
        "the same command again"
    )


def _unforeseen(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in a sentence that tutelage itself made a mistake, and keep the traceback where it can be sent from."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(kind, error, trace))
    kept = "it could not be kept"
    with contextlib.suppress(OSError):
        fd, path = tempfile.mkstemp(prefix="tutelage-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
        kept = f"it is kept in {path}"
    print(
        f"tutelage: {kind.__name__}: {error}; this was not foreseen and is a mistake of tutelage itself. What is done is "
        f"kept, the same command goes on; a report of it needs the traceback, {kept}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
