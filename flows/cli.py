"""The command line: `tutelage COMMAND`. Each command is a module of `flows.commands`, imported when asked for."""

import argparse
import os
import sys
from importlib import import_module

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
    "data": ("flows.commands.data", "list, show or check out versions of data sets"),
    "promote": ("flows.commands.promote", "make a policy the champion"),
    "rollback": ("flows.commands.promote", "make the previous champion the champion again"),
    "export": ("flows.commands.export", "write a policy or trajectories for other tools"),
    "up": ("flows.commands.services", "keep Prefect, a worker and MLflow running"),
    "down": ("flows.commands.services", "stop what `up` started"),
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


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; an error of the user's is a message, never a traceback."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # none is used, and looking for them takes 40 ms
    argv = sys.argv[1:] if argv is None else argv
    command = next((a for a in argv if a in COMMANDS), None)
    args = parser(command).parse_args(argv)
    try:
        return int(args.run(args))
    except TutelageError as e:
        print(f"tutelage: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        return 4
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
