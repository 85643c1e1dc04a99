"""Model servers as leased processes: started by the first node that samples, kept for the next, ended with the run.

The driver owns them and no node does. One node at a time uses a server, because it holds the weights of one policy;
the lock dies with the node's process. A server serves one architecture, tokenizer and precision; which weights it
holds is the business of the sampler.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from flows import services
from flows.leases import Lease, Process, short_lock, this_process
from specs.errors import Interrupted, ProgramError, ServiceError
from specs.redaction import looks_secret, secret_key
from specs.run import VLLMSampling
from tasks.files import DRIVER_VARIABLE
from tasks.ownprogram import KEPT
from tasks.policy.llama import Llama
from tasks.policy.served import SERVER_DTYPES, export_for_server, write_served_weights
from tasks.policy.store import LoadedPolicy, Precision

_POLL = 0.1
_BATCHED_TOKENS = 4096
"""Prompt tokens that a server encodes at once."""
_BLOCK = 32
"""Tokens of a block of the prefix cache: a group's prompt is shared but for the last of these (128 on a CPU, by default)."""
_GIVEN = (*KEPT, "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "HF_HUB_OFFLINE")
_GIVEN_BEGIN = ("LC_", "CUDA_", "NVIDIA_", "VLLM_", "OMP_")
"""What a server gets of the environment, by name or by how the name begins; secrets are never among it."""
_OF_A_NODE = "OMP_NUM_THREADS"
"""Set for a node's own process; a server would be slow with it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The node that asks: where servers are shared, when to give up, and whom to tell."""

    home: Path
    node: str
    stop: Callable[[], bool]
    waiting: Callable[[str], object]
    """Hears what it waits for."""


class ModelServer:
    """A server of ours, held by this node alone until `release`."""

    def __init__(self, caller: Caller, spec: VLLMSampling, policy: LoadedPolicy, precision: Precision) -> None:
        self._caller, self._spec, self._policy = caller, spec, policy
        self._precision: Precision = precision
        self._python = _python(spec)
        self._name = services.MODEL + _digest(spec, policy, precision)
        self.model: str | None = f"tutelage-{policy.template.digest[:12]}"
        self.url = ""
        self._written: Llama | None = None
        """Whose weights the folder holds since a server was started on them."""
        self._lock = Lease(caller.home / "services" / f"{self._name}.lock")
        self._lock.path.parent.mkdir(parents=True, exist_ok=True)
        self._take()
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            self._start()
            undo.pop_all()

    @property
    def folder(self) -> str:
        """Return the folder that it loads weights from."""
        return str(self._caller.home / self._name / "policy")

    @property
    def alive(self) -> bool:
        """Return whether its process lives."""
        found = services.read(self._caller.home, self._name)
        return found is not None and found.alive

    def write_weights(self, model: Llama) -> None:
        """Put the weights where the server reads them."""
        if self._written is not model:
            write_served_weights(model, Path(self.folder), self._precision)
        self._written = None

    def restart(self, reason: str) -> None:
        """End what is left of it and start another one in its place."""
        self._caller.waiting("model server died, starting it again")
        with short_lock(self._caller.home / "services" / "lock"):
            services.end_model(self._caller.home, self._name)
        self._start()

    def release(self) -> None:
        """Let the next node use it."""
        self._lock.release()

    def _take(self) -> None:
        """Wait until no other node uses it."""
        told = False
        while not self._lock.try_acquire(node=self._caller.node):
            if self._caller.stop():
                raise Interrupted("stopped while another node used the model server")
            if not told:
                told = True
                self._caller.waiting(f"waiting: {self._lock.read().get('node', 'another node')} uses the model server")
            time.sleep(_POLL)

    def _start(self) -> None:
        home, owner = self._caller.home, _owner()
        with short_lock(home / "services" / "lock"):
            found = services.read(home, self._name)
            if found is not None and found.alive:
                services.own(home, found, owner)
            else:
                found = self._launch(owner)
        self.url = found.url
        self._caller.waiting("starting the model server")
        use = services.Use(home, self._name, found.url, ours=True)
        try:
            use.wait_ready(self._spec.start_seconds, stop=self._caller.stop)
        except ServiceError as e:
            if self._caller.stop():
                raise Interrupted("stopped while the model server started") from e
            raise

    def _launch(self, owner: Process) -> services.Service:
        home, port = self._caller.home, services.free_port()
        length = self._policy.config.max_length
        export_for_server(self._policy, Path(self.folder), self._precision, max_length=length)
        self._written = self._policy.model
        service = services.Service(self._name, f"http://{services.HOST}:{port}", port, None, [owner])
        services.launch(home, service, self._command(port, length), python=self._python, given=_environment())
        return service

    def _command(self, port: int, length: int) -> services.Command:
        spec, cache = self._spec, self._caller.home / self._name
        usual = {
            "--dtype": SERVER_DTYPES[self._precision],
            "--max-model-len": str(length),
            "--max-num-seqs": str(spec.in_flight),
            "--max-num-batched-tokens": str(max(_BATCHED_TOKENS, length)),
            "--block-size": str(_BLOCK),
        }
        # Without chunks: vLLM on a CPU ends when it cuts the prompt of a request that has a seed.
        flags = ["--enforce-eager", "--no-enable-chunked-prefill"]
        fixed = {
            "--model": self.folder,
            "--served-model-name": str(self.model),
            "--host": services.HOST,
            "--port": str(port),
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
        }
        # The last one of several wins: a program chooses among what is usual, and what is fixed stays.
        words = [*_words(usual), *flags, *spec.arguments, *_words(fixed)]
        settings = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(spec.cache_gb),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(cache / "cache"),
            "VLLM_CONFIG_ROOT": str(cache / "config"),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(cache / "hub"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        return spec.server, words, settings


@dataclass(frozen=True, slots=True)
class NamedServer:
    """A server that somebody else runs, at `run.sampler.url`; it reads weights from a folder of this machine."""

    url: str
    folder: str
    precision: Precision
    model: str | None = None
    alive: bool = True

    def write_weights(self, model: Llama) -> None:
        """Put the weights where the server reads them."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        write_served_weights(model, Path(self.folder), self.precision)

    def restart(self, reason: str) -> None:
        """Refuse: it is not ours to start."""
        raise ServiceError(f"{self.url}: {reason}; start that server again, then run the same command")


def _words(options: Mapping[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def _environment() -> dict[str, str]:
    """Return what a server gets of this process's environment."""
    kept = {k: v for k, v in os.environ.items() if k in _GIVEN or k.startswith(_GIVEN_BEGIN)}
    return {k: v for k, v in kept.items() if k != _OF_A_NODE and not secret_key(k) and not looks_secret(v)}


def _owner() -> Process:
    """Return the driver of this node's run; this process where it is driven by nobody."""
    driver = os.environ.get(DRIVER_VARIABLE, "")
    found = this_process(int(driver)) if driver.isdigit() else this_process()
    return found if found.alive else this_process()


def _python(spec: VLLMSampling) -> str:
    """Return the interpreter of the server, a path from here or from where tutelage is installed."""
    path = Path(spec.python).expanduser()
    for base in (Path.cwd(), Path(__file__).parents[1], Path(sys.prefix).parent):
        if (base / path).is_file():
            return str((base / path).absolute())
    raise ProgramError(
        f"run.sampler.python: found no interpreter {spec.python!r} (looked in {Path.cwd()} and where tutelage is "
        "installed); install vLLM with `make vllm`, name a Python that has it, or sample with run.sampler.kind=local"
    )


def _digest(spec: VLLMSampling, policy: LoadedPolicy, precision: Precision) -> str:
    """Return what tells servers apart that cannot stand in for one another."""
    facts = [
        repr(policy.config), policy.template.digest, precision, spec.python, spec.server, spec.arguments,
        spec.in_flight, spec.cache_gb,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
