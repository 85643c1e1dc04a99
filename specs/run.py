"""The execution half of a program: never part of any content key."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from specs.addresses import is_loopback
from specs.base import Count, Flag, Positive, Spec

_OURS = (
    "--host",
    "--port",
    "--uds",
    "--model",
    "--served-model-name",
    "--api-key",
    "--logprobs-mode",
    "--generation-config",
    "--config",
    "--trust-remote-code",
)
"""Options of a server that no program may choose: others would reach it, what it samples would not be the policy's, a
file would say what is refused here, or code that came with weights would run."""


def _local(url: str) -> str:
    if not is_loopback(url):
        raise ValueError(
            f"found {url!r}, expected http:// and a host of the loopback (127.0.0.1, [::1] or localhost): the server "
            "takes weights and requests from everybody, without a password; bring a server elsewhere here by a tunnel"
        )
    return url


def _argument(word: str) -> str:
    name = re.split(r"[=.]", word, maxsplit=1)[0].replace("_", "-")
    if name.startswith("--") and any(ours.startswith(name) for ours in _OURS):  # or what it is short for
        raise ValueError(f"found {name}, expected none of what tutelage sets itself ({', '.join(_OURS)}); leave it out")
    return word


class LocalSampling(Spec):
    """The policy is sampled in the process of the node that needs it."""

    kind: Literal["local"] = "local"


class VLLMSampling(Spec):
    """The policy is sampled from a vLLM server, which gets every new version of its weights."""

    kind: Literal["vllm"]
    url: Annotated[str, Field(pattern=r"^http://[A-Za-z0-9.:\[\]-]+/?$"), AfterValidator(_local)] | None = None
    """A server on the loopback that runs already and reads this machine's files; one is started where left out."""
    python: Annotated[str, Field(min_length=1)] = ".venv-vllm/bin/python"
    """Interpreter with vLLM in it, which `make vllm` installs; a path from here, or from where tutelage is installed."""
    server: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")] = "vllm.entrypoints.openai.api_server"
    """Module that is the server; another one must speak the same HTTP API."""
    arguments: list[Annotated[str, AfterValidator(_argument)]] = []
    """More arguments of the server, such as `--tensor-parallel-size=2`; not its address, model, key, kind of logprobs or file of settings."""
    in_flight: Count = 64
    """Requests that the server gets at once."""
    cache_gb: Annotated[int, Field(ge=1, le=1024)] = 2
    """Memory for keys and values, on a CPU."""
    start_seconds: Positive = 600.0
    """Longest wait until a started server answers."""
    request_seconds: Positive = 900.0
    """Longest wait for all completions of one turn."""


Sampling = Annotated[LocalSampling | VLLMSampling, Field(discriminator="kind")]


class Budget(Spec):
    """What an execution may spend."""

    wall_hours: Positive | None = None
    """A run stops cleanly when it has taken this long."""
    teacher_usd: Positive | None = None
    """Most dollars that teachers may cost this program, all its runs together; a node that would pass it stops."""


class Run(Spec):
    """How nodes are executed on this machine."""

    profile: Literal["laptop", "server"] = "laptop"
    """`server` uses every core; `laptop` is careful with them."""
    threads: Count | None = None
    """Torch threads of one node; one on a laptop, every core on a server where left out."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 2
    """Nodes that may run at once."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    micro_batch_tokens: Annotated[int, Field(ge=64)] = 8192
    """Padded tokens that one forward pass holds."""
    gradient_checkpointing: Flag = False
    """Keep one state a layer and compute the rest again in the backward pass: less memory, one more forward pass, equal bits."""
    rollout_batch: Count = 256
    """Episodes that the sampler keeps in flight."""
    scoring_queue: Count = 256
    """Rollouts that have ended and wait for the scores of one open teacher; where there are as many, the sampler waits."""
    sampler: Sampling = LocalSampling()
    """What generates. The same program means the same with any; single tokens differ."""
    agent_processes: Annotated[int, Field(ge=1, le=256)] = 16
    """Programs of an external agent that run at once."""
    checkpoint_seconds: Positive = 10.0
    """Least time between two checkpoints of a node."""
    max_memory_gb: Positive | None = None
    """Memory that a node may plan to use; the machine's where left out."""
