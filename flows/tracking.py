"""How an execution looks in MLflow: one experiment per program, a run per execution, a child run per node.

Everything is found by tag before it is made, and every point has a timestamp that follows from what is on disk, so
sending twice changes nothing. Run ids are passed explicitly; no active run is ever used. Only `flows.recorder`, one
process per home, calls this.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import Registry, Version
from specs.redaction import without_secrets
from tasks.boundary import foreign

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARAMS = 100
"""Most parameters of a run; the rest is in `params.json` beside them."""
VALUE = 250
"""Characters of a parameter's value from which its digest stands there instead."""
_POINTS, _TAGS = 1000, 100
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_./\- ]")

Point = tuple[str, float, int, int]
"""Metric, value, time in ms, step."""


class Tracking:
    """One MLflow store. Every method raises ServiceError where the store is locked, absent or refuses."""

    def __init__(self, uri: str, home: Path) -> None:
        self.uri = uri
        self._home = home
        self._made: MlflowClient | None = None
        self._experiments: dict[str, str] = {}

    @property
    def _client(self) -> "MlflowClient":
        if self._made is None:
            import mlflow
            from mlflow import MlflowClient

            named = os.environ.get("MLFLOW_TRACKING_URI")
            mlflow.set_tracking_uri(self.uri)  # its registry asks the global store; it also sets the variable
            os.environ.pop("MLFLOW_TRACKING_URI")
            if named is not None:
                os.environ["MLFLOW_TRACKING_URI"] = named

            if self.uri.startswith("sqlite:///"):
                Path(self.uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
            self._made = MlflowClient(self.uri, self.uri)
        return self._made

    def experiment(self, program: str) -> str:
        """Return the id of a program's experiment."""
        if program not in self._experiments:
            with _asking(self.uri):
                found = self._client.get_experiment_by_name(program)
                self._experiments[program] = found.experiment_id if found is not None else self._new(program)
        return self._experiments[program]

    def _new(self, program: str) -> str:
        local = self.uri.startswith(("sqlite:///", "http://127.0.0.1"))
        folder = (self._home / "mlflow" / "artifacts" / program).as_uri() if local else None
        return self._client.create_experiment(program, artifact_location=folder)

    def run(
        self,
        program: str,
        name: str,
        tags: Mapping[str, str],
        start: int,
        parent: str | None = None,
    ) -> str:
        """Return the run that has all of `tags`, made if there is none."""
        with _asking(self.uri):
            found = self.find_run(program, tags)
            if found is not None:
                return found
            more = {} if parent is None else {"mlflow.parentRunId": parent}
            made = self._client.create_run(self.experiment(program), start, {**tags, **more}, name)
            return made.info.run_id

    def find_run(self, program: str, tags: Mapping[str, str]) -> str | None:
        """Return the id of a run with all of `tags`; None where there is none."""
        where = " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items())
        with _asking(self.uri):
            found = self._client.search_runs([self.experiment(program)], where, max_results=1)
        return found[0].info.run_id if found else None

    def metrics(self, run: str, points: Sequence[Point]) -> None:
        """Send points in batches; identical ones are kept once by the store."""
        from mlflow.entities import Metric

        with _asking(self.uri):
            for part in _parts(points, _POINTS):
                self._client.log_batch(run, metrics=[Metric(*p) for p in part], synchronous=True)

    def params(self, run: str, params: Mapping[str, Any]) -> None:
        """Send parameters, flat, at most a hundred; values that are long become digests, names are mapped reversibly."""
        from mlflow.entities import Param

        flat = flatten(params)
        sent = [Param(safe_name(k), short(v)) for k, v in list(flat.items())[:PARAMS]]
        with _asking(self.uri):
            if sent:
                self._client.log_batch(run, params=sent, synchronous=True)
        if len(flat) > PARAMS:
            self.tags(run, {"tutelage.params_left_out": str(len(flat) - PARAMS)})
        self.text(run, json.dumps(flat, indent=1, sort_keys=True, default=str), "params.json")

    def tags(self, run: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        with _asking(self.uri):
            for part in _parts(list(tags.items()), _TAGS):
                self._client.log_batch(run, tags=[RunTag(k, v[:4000]) for k, v in part], synchronous=True)

    def text(self, run: str, text: str, name: str) -> None:
        """Put a text beside the run."""
        with _asking(self.uri):
            self._client.log_text(run, text, name)

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Put a file beside the run."""
        with _asking(self.uri):
            self._client.log_artifact(run, str(path), folder)

    def close(self, run: str, status: str, end: int) -> None:
        """End a run as `FINISHED`, `FAILED` or `KILLED`."""
        with _asking(self.uri):
            self._client.set_terminated(run, status, end)

    def datasets(self, run: str, used: Iterable[Mapping[str, Any]]) -> None:
        """Name the data versions that a run read: name, context, DVC digest, path, commit, rows."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs: list[DatasetInput] = []
        for one in used:
            source = json.dumps({"path": one["name"], "rev": one["commit"], "version": one["version"]})
            profile = json.dumps({"files": one["files"], "bytes": one["size"]})
            dataset = Dataset(one["name"], one["md5"][:36], "dvc", source, schema=None, profile=profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", one["context"])]))
        if inputs:
            with _asking(self.uri):
                self._client.log_inputs(run, datasets=inputs)

    def model(self, program: str, name: str, digest: str, folder: str, run: str | None = None) -> str:
        """Return the LoggedModel of a policy: a link to its folder and its digest; made once for a digest."""
        with _asking(self.uri):
            experiment = self.experiment(program)
            found = self._client.search_logged_models([experiment], f"tags.`tutelage.digest` = '{digest}'")
            if found:
                return found[0].model_id
            tags = {"tutelage.digest": digest, "tutelage.folder": folder}
            made = self._client.create_logged_model(experiment, name, run, tags, {"folder": folder}, "policy")
            self._client.finalize_logged_model(made.model_id, "READY")
            return made.model_id

    def outputs(self, run: str, model: str, step: int) -> None:
        """Say that a run made a model."""
        from mlflow.entities import LoggedModelOutput

        with _asking(self.uri):
            known = self._client.get_run(run).outputs
            if known is None or all(m.model_id != model for m in known.model_outputs):
                self._client.log_outputs(run, [LoggedModelOutput(model, step)])

    def mirror(self, registry: Registry) -> None:
        """Make the registered model and its aliases say what the registry says; each version once."""
        name = registry.program
        with _asking(self.uri):
            if not self._client.search_registered_models(f"name = '{name}'", max_results=1):
                self._client.create_registered_model(name)
            numbers = {v.version: self._version(name, v) for v in registry.versions}
            known = self._client.get_registered_model(name).aliases
            for alias in set(known) - set(registry.aliases):
                self._client.delete_registered_model_alias(name, alias)
            for alias, number in registry.aliases.items():
                if str(known.get(alias)) != numbers[number]:
                    self._client.set_registered_model_alias(name, alias, numbers[number])

    def _version(self, name: str, version: Version) -> str:
        where = f"name = '{name}' and tags.`tutelage.digest` = '{version.digest}'"
        found = self._client.search_model_versions(where)
        if found:
            return str(found[0].version)
        model = self.model(name, version.stage, version.digest, version.folder)
        logged = self._client.get_logged_model(model)
        tags = {
            "tutelage.digest": version.digest,
            "tutelage.version": str(version.version),
            "tutelage.folder": version.folder,
            "tutelage.gate": version.gate or "",
            "tutelage.execution": version.execution or "",
        }
        made = self._client.create_model_version(
            name,
            logged.artifact_location,
            logged.source_run_id,
            tags,
            description=version.reason or None,
            model_id=model,
        )
        return str(made.version)


@contextmanager
def _asking(uri: str) -> Any:
    """Turn everything that a store may raise into ServiceError."""
    with foreign(f"MLflow at {without_secrets(uri)}", _reason):
        yield


def _reason(error: Exception) -> str:
    """Return in a few words what a store said, and what to do where that is known."""
    text = str(error).strip() or type(error).__name__
    if "Max retries exceeded" in text or "Failed to establish a new connection" in text:
        return (
            "nothing answers there; start that server, or unset MLFLOW_TRACKING_URI: tutelage then keeps its own store"
        )
    if "database is locked" in text:
        return "its database is locked by another process; it is tried again, end that process where it never lets go"
    first = without_secrets(text.splitlines()[0])
    return first if len(first) <= 300 else f"{first[:300]}…"


def flatten(data: Any, path: str = "") -> dict[str, Any]:
    """Return nested maps as one, keys joined by dots; lists of plain values stay one value."""
    if isinstance(data, Mapping):
        flat: dict[str, Any] = {}
        for key, value in data.items():
            flat |= flatten(value, f"{path}.{key}" if path else str(key))
        return flat
    if isinstance(data, list) and any(isinstance(v, Mapping | list) for v in data):
        return flatten({str(i): v for i, v in enumerate(data)}, path)
    return {path: data}


def short(value: Any) -> str:
    """Return a parameter's value as text; a long one becomes its digest and length."""
    import hashlib

    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) <= VALUE:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()} ({len(text)} characters, whole in params.json)"


def safe_name(name: str) -> str:
    """Return a name that MLflow takes; other characters become `:` and their hex code, so that it can be undone."""
    return _FORBIDDEN.sub(lambda m: "".join(f":{b:02x}" for b in m[0].encode()), name)


def millis(at: str) -> int:
    """Return an ISO time in milliseconds."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def points_of(lines: Iterable[str], start: int) -> list[Point]:
    """Return the points of a metric spool: the same lines give the same points, whenever they are read.

    A value that was not finite is counted under `<name>.not_finite` and never sent itself.
    """
    points: list[Point] = []
    bad: dict[str, int] = {}
    before = offset = 0.0
    for line in lines:
        try:
            data = json.loads(line)
            step, seconds, values = int(data["step"]), float(data["seconds"]), dict(data["values"])
        except (ValueError, KeyError, TypeError):  # a torn tail, or a damaged line; the receipt has the summary
            continue
        if seconds < before:  # a resumed attempt starts its clock anew
            offset += before
        before = seconds
        at = start + round((offset + seconds) * 1000)
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                points.append((safe_name(name), float(value), at, step))
        for name in data.get("not_finite", []):
            bad[name] = bad.get(name, 0) + 1
            points.append((safe_name(f"{name}.not_finite"), float(bad[name]), at, step))
    return points


def _parts(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    for i in range(0, len(items), size):
        yield items[i : i + size]
