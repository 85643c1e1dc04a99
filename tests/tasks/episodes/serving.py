"""A tiny policy behind the small model server, asked through the sampler that speaks to vLLM."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.episodes.vllm_sampler import Asking, VLLMSampler
from tasks.policy.llama import Llama
from tasks.policy.served import export_for_server, write_served_weights
from tasks.policy.store import LoadedPolicy, save_policy
from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.episodes.counter_world import counter_policy

POLICY = counter_policy()


def prompt(i: int) -> list[int]:
    return POLICY.tokenizer.encode(f"Count to {i}, please.")


class Served:
    """A server in a thread, as the wiring would hand it over."""

    def __init__(self, server: CompletionsServer, folder: Path, model: str | None = "tiny") -> None:
        self.server, self.folder, self.model, self.alive = server, str(folder), model, True
        self.url = server.url
        self.restarted: list[str] = []

    def write_weights(self, model: Llama) -> None:
        write_served_weights(model, Path(self.folder), "fp32")

    def restart(self, reason: str) -> None:
        self.restarted.append(reason)
        self.server.version = None


@contextmanager
def served(
    tmp_path: Path, faults: str = "", policy: LoadedPolicy = POLICY, *, tied: bool = False, **asking: object
) -> Iterator[tuple[Served, VLLMSampler]]:
    folder = tmp_path / "policy"
    if tied:
        save_policy(policy, folder)
    else:
        export_for_server(policy, folder, "fp32", max_length=policy.config.max_length)
    with CompletionsServer(folder, faults=faults) as server:
        wired = Served(server, folder)
        sampler = VLLMSampler(wired, policy, "start/0", "fp32", Asking(**asking))  # pyright: ignore[reportArgumentType]
        yield wired, sampler
        sampler.close()
