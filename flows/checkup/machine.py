"""The machine: versions, git, disk, ports, and services that somebody else runs."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from flows import services
from flows.checkup.findings import Finding, ok
from flows.databranch import git, project_of
from specs.errors import ServiceError
from specs.redaction import without_secrets

_SHOWN = ("torch", "prefect", "mlflow", "dvc")
_LITTLE, _SCARCE = 2e9, 2e8  # bytes
_INSTALL = "install again: `make .venv/ready`, or `pip install -c constraints.txt -e .`"


def versions() -> Iterator[Finding]:
    """Compare what is installed with what this version of tutelage asks for."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    wanted = metadata.metadata("tutelage")["Requires-Python"] or ""
    python = ".".join(map(str, sys.version_info[:3]))
    if python not in SpecifierSet(wanted):
        yield Finding("versions", "wrong", "python", f"{python}, asked for {wanted}", _INSTALL)
    pins = _pins(Path(__file__).parents[2] / "constraints.txt")
    shown = [f"python {python}"]
    for text in metadata.requires("tutelage") or ():
        asked = Requirement(text)
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(asked.name)
        except metadata.PackageNotFoundError:
            yield Finding("versions", "wrong", asked.name, "is not installed", _INSTALL)
            continue
        pin = pins.get(asked.name)
        if not asked.specifier.contains(found, prereleases=True):
            yield Finding("versions", "wrong", asked.name, f"{found}, asked for {asked.specifier}", _INSTALL)
        elif pin is not None and found.partition("+")[0] != pin.partition("+")[0]:
            yield Finding("versions", "note", asked.name, f"{found}, tested with {pin}", _INSTALL)
        elif asked.name in _SHOWN:
            shown.append(f"{asked.name} {found}")
    yield ok("versions", sys.prefix, ", ".join(shown))


def _pins(path: Path) -> dict[str, str]:
    """Return name -> version of the exact pins of a constraints file; empty where there is none."""
    if not path.is_file():
        return {}
    pairs = (line.partition("#")[0].strip().partition("==") for line in path.read_text(encoding="utf-8").splitlines())
    return {name.strip(): version.strip() for name, same, version in pairs if same}


def git_identity(home: Path) -> Iterator[Finding]:
    """See whether data versions can be committed, and under whose name."""
    folder = next((p for p in home.absolute().parents if p.exists()), Path("/"))
    try:
        project = project_of(home)
        names = [git(folder, "config", key, check=False) for key in ("user.name", "user.email")]
    except ServiceError as e:
        yield Finding("git", "wrong", str(folder), str(e), "data versions wait until git can be used here")
        return
    if project is None:
        yield Finding(
            "git", "note", str(folder), "no git repository: data versions stay in this folder",
            "run `git init` here to keep them in a branch of the project",
        )  # fmt: skip
    if not all(names):
        yield Finding(
            "git", "note", str(folder), "no name or address: data versions are committed as tutelage@localhost",
            "set them with `git config user.name` and `git config user.email`",
        )  # fmt: skip
    else:
        yield ok("git", str(project or folder), f"commits as {names[0]} <{names[1]}>")


def disk(home: Path) -> Iterator[Finding]:
    """See whether there is room, and the right to write."""
    place = next(p for p in (home.absolute(), *home.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    said = f"{free / 1e9:.1f} GB free"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "disk", "wrong", str(place), "cannot be written", "mend its owner or rights, or set TUTELAGE_HOME"
        )
    elif free < _SCARCE:
        yield Finding("disk", "wrong", str(place), said, "free space there, or set TUTELAGE_HOME to another disk")
    elif free < _LITTLE:
        yield Finding("disk", "note", str(place), said, "a run may need more; `tutelage plan` says how much")
    else:
        yield ok("disk", str(place), said)


def ports(home: Path) -> Iterator[Finding]:
    """See whether the ports of `tutelage up` are free, or ours."""
    for name, port in services.PORTS.items():
        found = services.read(home, name)
        where = f"{services.HOST}:{port}"
        if found is not None and found.alive and found.port == port:
            yield ok("ports", where, f"{name} of this project")
            continue
        try:
            services.check_port(name, port)
            yield ok("ports", where, f"free for {name}")
        except ServiceError as e:
            yield Finding("ports", "note", where, str(e).partition(";")[0], f"`tutelage up --{name}-port PORT`")


def named_services() -> Iterator[Finding]:
    """See whether the servers that the environment names answer."""
    for variable, name in (("PREFECT_API_URL", "prefect"), ("MLFLOW_TRACKING_URI", "mlflow")):
        url = os.environ.get(variable, "")
        if url.startswith("http"):
            shown = without_secrets(url)
            if services.answers(url, name, timeout=3.0):
                yield ok("services", variable, f"{name} answers at {shown}")
            else:
                do = f"start that server, or unset {variable}: tutelage then uses its own"
                yield Finding("services", "wrong", variable, f"no {name} answers at {shown}", do)
