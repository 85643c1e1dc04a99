"""The only part that looks outside before a run: names that move become immutable ids, stored with the plan.

Content (files, weights, packages, programs of one's own, values behind `${env:…}`) is looked at every time. Names that
move (aliases, pools, `precision: auto`) keep what they meant at the last run while program and content are those of
that run, until `refresh`: what is judged anew is compared with the champion of now.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from flows import answers, own_programs, pools
from flows.leases import accelerated
from flows.looks import read as read_looks
from flows.resolution import (
    Resolution,
    code_digest,
    environments_of,
    of_rounds,
    program_digest,
    resolution_from,
    same_outside,
    used_data,
    wanted_aliases,
)
from flows.teacher_tokens import with_tokens
from flows.weights import adapter, find, look, tokenizer
from specs.data import PoolData, ProblemFile
from specs.environments import BFCL
from specs.errors import ProgramError, StateError
from specs.policy import PretrainedPolicy
from specs.program import Program
from specs.teacher_choice import used_teachers

Json = dict[str, Any]
_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERRING = (
    re.compile(r"data\..+\.path"), re.compile(r"policy\.init\.(model|revision)"), re.compile(r"tags\..+"),
    re.compile(r"teachers\.[^.]+\.(base_url|url|api_key|model)"),
)  # fmt: skip
"""Fields in which `${env:NAME}` is read."""
_NEVER_KEPT = re.compile(r"teachers\.[^.]+\.(base_url|url|api_key)")
"""Fields whose value is looked at when a call is made; not even a digest of it is kept."""
_BFCL = "pip install --no-deps bfcl-eval==2026.3.23"


class StateView(Protocol):
    """Where state is kept."""

    @property
    def home(self) -> Path:
        """Return the folder `.tutelage`."""
        ...


class Loaded(Protocol):
    """A program with the file it came from."""

    @property
    def program(self) -> Program:
        """Return the program."""
        ...

    @property
    def path(self) -> Path:
        """Return its file."""
        ...


def resolve(
    loaded: Loaded | Program,
    *,
    state_view: StateView | None = None,
    refresh: bool = False,
    rounds_only: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Resolution:
    """Look at everything outside that the program names. ProgramError with position and remedy where it is not there.

    `loaded` without a file reads paths from the working directory. `rounds_only`: as a schedule may ask for.
    """
    program = loaded if isinstance(loaded, Program) else loaded.program
    file = None if isinstance(loaded, Program) else Path(loaded.path).absolute()
    environ = os.environ if environ is None else environ
    where = _Where(file, loaded)
    last = _last(state_view, program.program)
    salt = last.salt if last is not None and last.salt else secrets.token_hex(8)
    folder = file.parent if file is not None else Path.cwd()
    seen = Resolution(
        program_digest=program_digest(program),
        file=None if file is None else str(file),
        salt=salt,
        env=_environment(program, where, environ, salt),
        weights=_weights(program, folder, where, environ, last),
        teachers=_teachers(program, folder, where, environ, last),
        files=_files(program, folder, where, environ, last),
        packages=_packages(program, where),
        commands=own_programs.look(program, folder, where),
        machine=_machine(program),
        code=code_digest(program),
    )
    known = last.teachers if last is not None else {}
    teachers = with_tokens(program, seen.weights, seen.teachers, known, lambda text: Path(expand(text, environ)), where)
    seen = replace(seen, teachers=teachers)
    same = last is not None and not refresh and last.rounds_only == rounds_only
    same = same and last is not None and same_outside(last, seen, _variables_that_count(program))
    found = _with_names(seen, program, state_view, last if same else None)
    return of_rounds(found, program) if rounds_only else found


def _with_names(seen: Resolution, program: Program, view: StateView | None, pinned: Resolution | None) -> Resolution:
    """Return what was looked at with what moving names mean: in `pinned` where it is given, else now."""
    aliases, promotions = _aliases(program, view, pinned)
    answered = {}
    if view is not None and program.gates:
        read_looks(view.home, program.program)  # a damaged ledger is told now and not after hours, by a gate
        answered = answers.resolved(view.home, program.program)
    return replace(
        seen,
        aliases=aliases,
        promotions=promotions,
        precision=auto_precision(program) if pinned is None else pinned.precision,
        pools=_pools(program, view, pinned),
        answers=answered,
        reused=pinned is not None,
    )


class _Where:
    """Positions for messages: `file:line:col path` where the loader knows them, else `file: path`."""

    def __init__(self, file: Path | None, loaded: Any) -> None:
        self._file = file
        self._position = getattr(loaded, "where", None)

    def __call__(self, path: str) -> str:
        if callable(self._position):
            return str(self._position(path))
        return path if self._file is None else f"{self._file.name}: {path}"


def auto_precision(program: Program) -> Literal["fp32", "bf16"]:
    """Return what `precision: auto` means here."""
    return "bf16" if accelerated(program.run.device) else processor_precision()


def processor_precision() -> Literal["fp32", "bf16"]:
    """Return the precision in which this processor is fastest; without bf16 arithmetic (AMX, AVX512-bf16) it emulates that."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return "fp32"
    return "bf16" if {"avx512_bf16", "amx_bf16", "bf16"} & set(flags) else "fp32"


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return text with every `${env:NAME}` replaced. ProgramError names a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise ProgramError(f"the environment variable {match[1]} is not set; set it and run again")
        return environ[match[1]]

    return _REFERENCE.sub(value, text)


def expanded(params: Any, environ: Mapping[str, str]) -> Any:
    """Return a node's params with references replaced: what a body gets, never what is stored."""
    if isinstance(params, dict):
        return {k: expanded(v, environ) for k, v in cast(Json, params).items()}
    if isinstance(params, list):
        return [expanded(v, environ) for v in cast("list[Any]", params)]
    return expand(params, environ) if isinstance(params, str) else params


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in cast(Json, value).items():
            yield from _strings(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _strings(inner, f"{path}[{i}]")


def _environment(program: Program, where: _Where, environ: Mapping[str, str], salt: str) -> dict[str, str]:
    found: dict[str, str] = {}
    used = {f"data.{name}" for name in used_data(program)} | {f"teachers.{n}" for n in used_teachers(program)}
    for path, text in _strings(program.model_dump(mode="json", by_alias=True), ""):
        names = _REFERENCE.findall(text)
        if (
            not names
            or path.startswith("notify.")
            or _NEVER_KEPT.fullmatch(path)
            or (path.startswith(("data.", "teachers.")) and path.rpartition(".")[0] not in used)
        ):
            continue  # hooks read theirs as they start, and teachers are reached by nodes that run
        if not any(p.fullmatch(path) for p in _REFERRING):
            raise ProgramError(
                f"{where(path)}: found {text!r}, but references to the environment are read only in "
                "data.*.path, policy.init.model, policy.init.revision, teachers.*.base_url, url, api_key and model, and tags; "
                "write the value here"
            )
        for name in names:
            if name not in environ:
                raise ProgramError(
                    f"{where(path)}: the environment variable {name} is not set; set it (export {name}=…) "
                    "or write the value here"
                )
            found[name] = hashlib.sha256(f"{salt}\0{environ[name]}".encode()).hexdigest()
    return dict(sorted(found.items()))


def _variables_that_count(program: Program) -> set[str]:
    """Return the environment variables that more than tags read."""
    texts = _strings(program.model_dump(mode="json", by_alias=True, exclude={"tags"}), "")
    return {name for _, text in texts for name in _REFERENCE.findall(text)}


def _stored_path(text: str, path: Path, where: str) -> str:
    """Return what may be stored of a path: itself, or the reference where the environment says it."""
    if not _REFERENCE.search(text):
        return str(path)
    if not path.is_absolute() or not _REFERENCE.match(text):
        raise ProgramError(f"{where}: found {text!r}; a path with a reference must begin with it and be absolute")
    return text


def _weights(
    program: Program, folder: Path, where: _Where, environ: Mapping[str, str], last: Resolution | None
) -> Json | None:
    init = program.policy.init
    if not isinstance(init, PretrainedPolicy):
        return None
    field_path = "policy.init.model"
    model = expand(init.model, environ)
    path = find(model, folder, where(field_path))
    found = look(path, last.weights if last is not None else None)
    wanted = None if init.revision is None else expand(init.revision, environ)
    if wanted is not None and found.digest != wanted:
        raise ProgramError(
            f"{where('policy.init.revision')}: {wanted!r} expected, but the weights have the digest {found.digest}; "
            "use the weights that were meant, or write this digest"
        )
    literal = str(path) if model.startswith("package:") else _stored_path(init.model, path, where(field_path))
    more = {} if init.adapter is None else {"adapter": adapter(init.adapter, folder, where("policy.init.adapter"))}
    return {**found.to_dict(), "path": literal, **more}


def _teachers(
    program: Program, folder: Path, where: _Where, environ: Mapping[str, str], last: Resolution | None
) -> dict[str, Json]:
    """Return the weights of the checkpoints that teach, and the tokenizers of teachers behind a server."""
    found: dict[str, Json] = {}
    for name in used_teachers(program):
        spec = program.teachers[name]
        at = f"teachers.{name}"
        known = last.teachers.get(name) if last is not None else None
        if spec.kind == "served_model":
            if spec.tokenizer is not None:
                found[name] = tokenizer(spec.tokenizer, folder, where(f"{at}.tokenizer"), known)
            continue
        if spec.kind == "model":
            asked = spec
        elif spec.kind == "trained" and isinstance(spec.init, PretrainedPolicy):
            asked, at = spec.init, f"{at}.init"
        else:
            continue
        field_path = f"{at}.model"
        model = expand(asked.model, environ)
        path = find(model, folder, where(field_path))
        weights = look(path, known)
        if asked.revision is not None and weights.digest != asked.revision:
            raise ProgramError(
                f"{where(f'{at}.revision')}: {asked.revision!r} expected, but the weights have the digest "
                f"{weights.digest}; use the weights that were meant, or write this digest"
            )
        literal = str(path) if model.startswith("package:") else _stored_path(asked.model, path, where(field_path))
        found[name] = {**weights.to_dict(), "path": literal}
        if (small := getattr(asked, "adapter", None)) is not None:
            found[name] |= {"adapter": adapter(small, folder, where(f"{at}.adapter"))}
    return found


def _files(
    program: Program, folder: Path, where: _Where, environ: Mapping[str, str], last: Resolution | None
) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name in used_data(program):
        source = program.data[name]
        if not isinstance(source, ProblemFile):
            continue
        at = where(f"data.{name}.path")
        path = folder / expand(source.path, environ)
        if not path.is_file():
            raise ProgramError(f"{at}: no file {source.path!r} (looked in {folder}); expected a JSONL file of problems")
        stored = _stored_path(source.path, path, at)
        stat = f"{path.stat().st_size}:{path.stat().st_mtime_ns}"
        known = last.files.get(name) if last is not None else None
        if known is not None and known.get("stat") == stat and known.get("path") == stored:
            found[name] = dict(known)
        else:
            data = path.read_bytes()
            rows = sum(1 for line in data.splitlines() if line.strip())
            found[name] = {"path": stored, "digest": hashlib.sha256(data).hexdigest(), "rows": rows, "stat": stat}
    return found


def _packages(program: Program, where: _Where) -> dict[str, str]:
    for kind in dict.fromkeys(e for name in used_data(program) for e in environments_of(program, name)):
        if isinstance(program.environments.get(kind), BFCL):
            try:
                return {"bfcl-eval": importlib.metadata.version("bfcl-eval")}
            except importlib.metadata.PackageNotFoundError as e:
                raise ProgramError(
                    f"{where(f'environments.{kind}.kind')}: bfcl needs the package bfcl-eval; install it: {_BFCL}"
                ) from e
    return {}


def _aliases(program: Program, view: StateView | None, pinned: Resolution | None) -> tuple[dict[str, Json | None], int]:
    """Return what aliases mean, and how many changes of the champion there were then."""
    wanted = wanted_aliases(program)
    if pinned is not None and set(wanted) <= set(pinned.aliases):
        found, promotions = {name: pinned.aliases[name] for name in wanted}, pinned.promotions
    else:
        found, promotions = _registered(program.program, wanted, view)
    for name, version in found.items():
        if version is not None and view is not None and not (view.home / version["folder"]).exists():
            raise StateError(
                f"registry: the {name} of {program.program} (version {version['version']}) should lie in "
                f"{version['folder']}, which is gone; promote another version with `tutelage promote`"
            )
    return found, promotions


def _pools(program: Program, view: StateView | None, pinned: Resolution | None) -> dict[str, Json | None]:
    """Return what was published last of each pool that a data set or a round reads."""
    wanted: set[str] = {s.pool for n in used_data(program) if isinstance(s := program.data[n], PoolData)}
    if program.flywheel is not None:  # what its rounds held back or trained on before
        wanted |= {pools.REGRESSION, pools.TRAINED, pools.ANSWERED}
    if pinned is not None and wanted <= set(pinned.pools):
        return {pool: pinned.pools[pool] for pool in sorted(wanted)}
    found = {pool: pools.newest(view.home, program.program, pool) if view else None for pool in sorted(wanted)}
    return {pool: None if version is None else version.resolved() for pool, version in found.items()}


def _registered(program: str, wanted: list[str], view: StateView | None) -> tuple[dict[str, Json | None], int]:
    path = None if view is None else view.home / "registry" / f"{program}.json"
    if path is None or not path.exists():
        return dict.fromkeys(wanted), 0
    try:
        data = cast(Json, json.loads(path.read_text(encoding="utf-8")))
        versions = {int(v["version"]): v for v in data["versions"]}
        found: dict[str, Json | None] = {}
        for name in wanted:
            number = data["aliases"].get(name)
            version = None if number is None else versions[int(number)]
            found[name] = None if version is None else {k: version[k] for k in ("version", "digest", "folder")}
        if (champion := found.get("champion")) is not None:
            stood = {str(p["digest"]) for p in data["promotions"] if p["result"] in ("promoted", "rolled_back")}
            champion["former"] = sorted(stood - {champion["digest"]})
        return found, len(data["promotions"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise StateError(
            f"{path}: damaged registry ({type(e).__name__}: {e}); expected versions and aliases; "
            f"restore it from a copy, or move it away to start a new one (the policies in {path.with_suffix('')} stay)"
        ) from e


def _machine(program: Program) -> dict[str, float]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    machine = {"cores": float(cores), "memory_gb": round(memory / 1e9, 1)}
    if program.run.device != "cpu" and (gpu := _gpu_memory()) is not None:
        machine["gpu_memory_gb"] = gpu
    return machine


def _gpu_memory() -> float | None:
    from tasks.processes import run

    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = run(query, seconds=10).out.split()
        return round(int(told[0]) * 1.048576e-3, 1) if told else None
    except (OSError, ValueError):
        return None


def _last(view: StateView | None, program: str) -> Resolution | None:
    """Return the resolution of a program's last run; None where there is none that can be read."""
    if view is None:
        return None
    try:
        data: Any = json.loads((view.home / "programs" / program / "last.json").read_bytes())
        return resolution_from(data["resolution"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
