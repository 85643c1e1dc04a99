"""Bodies of teachers behind a server: what is looked at before anything is trained, and the teacher that a stage asks."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from specs.errors import StateError
from specs.served_teacher import ServedModelTeacher
from tasks.files import write_durable, write_json
from tasks.learning.opening import Over, System, in_policy_tokens
from tasks.policy.foreign import frame_name
from tasks.policy.gguf_tokenizer import read_tokenizer
from tasks.policy.store import LoadedPolicy
from tasks.protocols import TokenTeacher
from tasks.teachers.client_scores import Circumstances, ScoresClient
from tasks.teachers.common import LIMITS
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.served import ServedTeacher
from tasks.teachers.served_probes import Fingerprint, check_encoding, check_fingerprint, check_server, fingerprint
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.frames import Frame, frame_for

Json = dict[str, Any]


def look(node: NodeContext) -> Outcome:
    """Prove what a server has; writes `tokenizer.json`, and `served.json` with the logprobs that it gave to fixed ids."""
    (name,) = node.params["access"]["teachers"]
    client = _client(node, name, node.params["teacher"] | {"tokenizer": node.params.get("path")})
    node.progress("looking at the teacher's server", None, {})
    tokenizer = _tokenizer(node)
    frame = frame_for(frame_name(client.spec, node.params["template"]), tokenizer, f"teachers.{name}.tokenizer")
    found = check_server(client)
    check_encoding(client, tokenizer, frame)
    probe = fingerprint(client, tokenizer, node.params["list"])
    write_durable(node.out / "tokenizer.json", tokenizer.to_json())
    told = {"teacher": node.params["teacher"], "template": frame.name, "probe": probe.to_dict()}
    write_json(node.out / "served.json", told)
    where = f" from {found.root}" if found.root else ""
    revision = f" as revision {client.spec.revision}" if client.spec.revision else ""
    mean = sum(probe.logprobs) / max(1, len(probe.logprobs))
    note = f"{client.spec.model}{revision}, served by vLLM {found.engine}{where}; mean logprob of the probe {mean:.4f}"
    return Outcome(metrics={"probe_logprob": mean}, notes=[note])


def served_teacher(
    node: NodeContext, name: str, policy: LoadedPolicy, who: Json, *, over: Over, size: int, system: System
) -> tuple[TokenTeacher, ServedTeacher]:
    """Return a teacher of the policy's tokens, and what asks the server. ProgramError where other weights are served now.

    `size`: tokens that it lists; 0 where single ones are scored.
    """
    folder = node.inputs[f"teacher.{name}"]
    tokenizer = AnyTokenizer.load(folder / "tokenizer.json")
    told, frame, probe = _read(folder, tokenizer)
    client = _client(node, name, told | {"align": who["align"]})
    check_fingerprint(client, probe, tokenizer.size, size)
    kept = KeptScores(node.checkpoints / "scores" / name)
    asking = ServedTeacher(client, tokenizer.size, kept)
    return in_policy_tokens(asking, (tokenizer, frame), policy, client.spec.align, over=over, system=system), asking


def _client(node: NodeContext, name: str, who: Json) -> ScoresClient:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would write every address into the log
    spec = ServedModelTeacher.model_validate({**who, **node.params["access"]["teachers"][name]})

    def tell(done: int, total: int) -> None:
        node.progress(f"asking {name}", done / max(1, total), {"rows": float(done)})

    return ScoresClient(name, spec, Circumstances(os.environ, node.teachers / LIMITS, node.stop, tell))


def _tokenizer(node: NodeContext) -> AnyTokenizer:
    """Return the tokenizer that the server must have: the one that the program names, else the policy's."""
    if "policy" in node.inputs:
        return AnyTokenizer.load(node.inputs["policy"] / "policy" / "tokenizer.json")
    path = Path(node.params["path"])
    if path.suffix == ".gguf":
        return AnyTokenizer.from_json(read_tokenizer(path).to_json(), str(path))
    return AnyTokenizer.load(path)


def _read(folder: Path, tokenizer: AnyTokenizer) -> tuple[Json, Frame, Fingerprint]:
    path = folder / "served.json"
    try:
        data = json.loads(path.read_bytes())
        frame = frame_for(data["template"], tokenizer, str(folder))
        return data["teacher"], frame, Fingerprint(list(data["probe"]["ids"]), list(data["probe"]["logprobs"]))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path}: damaged ({type(e).__name__}: {e}); run the node that wrote it again") from e
