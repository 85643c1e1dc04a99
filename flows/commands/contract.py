"""`tutelage check FILE --contract NAME`: run the contract test of an environment or a verifier of the program."""

import json
from pathlib import Path
from typing import Any

from flows.own_programs import found
from specs.commands import Command, ResolvedCommand
from specs.environments import Environment as EnvironmentSpec
from specs.errors import ProgramError
from specs.loader import LoadedProgram, load_program
from specs.verifiers import Verifier as VerifierSpec


def run_contract(file: str, settings: list[str], name: str, *, as_json: bool) -> int:
    """Print what was found; the exit code is 2 where a check failed. ProgramError where nothing has that name."""
    loaded = load_program(file, settings)
    program = loaded.program
    findings: list[dict[str, Any]] = []
    for section, specs in (("environments", program.environments), ("verifiers", program.verifiers)):
        if name in specs:
            findings += _checked(f"{section}.{name}", _resolved(loaded, f"{section}.{name}", specs[name]), loaded)
    if not findings:
        known = ", ".join([*program.environments, *program.verifiers])
        raise ProgramError(f"--contract: found {name!r}, expected an environment or a verifier of {file} ({known})")
    broken = sum(f["ok"] is False for f in findings)
    if as_json:
        print(json.dumps({"file": file, "name": name, "ok": not broken, "findings": findings}, indent=2))
    else:
        for f in findings:
            word = {True: "ok", False: "BROKEN", None: "not applicable"}[f["ok"]]
            print(f"{f['of']}: {f['check']}: {word}" + (f" ({f['text']})" if f["text"] else ""))
        print(f"{name}: " + (f"{broken} of {len(findings)} checks failed" if broken else "keeps its contract"))
    return ProgramError.exit_code if broken else 0


def _resolved(loaded: LoadedProgram, name: str, spec: Any) -> Any:
    """Return the spec with what its program was found to be, where it has one."""
    if not isinstance(spec, Command):
        return spec
    known = found(name, spec, Path(loaded.path).absolute().parent, loaded.where)
    return spec.model_copy(update={"resolved": ResolvedCommand.model_validate(known)})


def _checked(of: str, spec: EnvironmentSpec | VerifierSpec, loaded: LoadedProgram) -> list[dict[str, Any]]:
    section, _, name = of.partition(".")
    if section == "environments":
        from tasks.episodes.environments import environment_for
        from tasks.episodes.environments.contract import contract

        found_here = contract(environment_for(name, spec), loaded.program.agent.call_format)  # type: ignore[arg-type]
        return [{"of": of, "check": f.check, "ok": f.ok, "text": f.text} for f in found_here]
    from tasks.evidence.verifiers.contract import contract as verifier_contract

    return [{"of": of, "check": c, "ok": ok, "text": t} for c, ok, t in verifier_contract(name, spec)]  # type: ignore[arg-type]
