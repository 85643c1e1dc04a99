"""Model servers as leases: one process for all nodes of a run, started again once, gone with the run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flows import services
from flows.cli import main
from flows.context import MetricSpool, NodeContext
from flows.model_servers import Caller, ModelServer
from flows.work import inputs, policy_gradient
from flows.work.serving import sampler_for
from specs.agents import ToolLoop
from specs.environments import OrderDesk
from specs.errors import Interrupted, ProgramError, ServiceError
from specs.grpo import GRPO
from specs.policy import BPETokenizer, Policy, ScratchPolicy
from specs.records import to_dict
from specs.reward import Reward
from specs.run import Run, VLLMSampling
from specs.stages import Needs, Preflight
from specs.verifiers import EnvironmentState
from tasks.episodes.environments import environment_for
from tasks.episodes.local import LocalSampler
from tasks.episodes.shards import read_shards
from tasks.episodes.vllm_sampler import VLLMSampler
from tasks.policy.served import export_for_server
from tasks.policy.store import LoadedPolicy, load_policy, save_policy
from tasks.protocols import SampleRequest, SamplingSettings
from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.episodes.counter_world import counter_policy
from tests.tasks.episodes.serving import POLICY, prompt

SETTINGS = SamplingSettings(1.0, 6, POLICY.template.stop_ids)
DESK = OrderDesk(kind="order_desk", types=["stock"], max_turns=2)


def spec(*faults: str, **more: Any) -> VLLMSampling:
    """Return a declaration whose server is the small one of the tests."""
    arguments = [f"--faults={','.join(faults)}"] if faults else []
    server = "tests.tasks.episodes.completions_server"
    return VLLMSampling(
        kind="vllm", python=sys.executable, server=server, arguments=arguments, start_seconds=60.0, **more
    )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    services.release_models(tmp_path / "home")


def context(home: Path, sampler: VLLMSampling, name: str = "node", **more: Any) -> NodeContext:
    folder = home / "nodes" / name
    (folder / "out").mkdir(parents=True)
    (folder / "ckpt").mkdir()
    execution = Run(sampler=sampler).model_dump(mode="json")
    said: list[str] = more.pop("said", [])
    return NodeContext(
        id=name, kind="test", params=more.pop("params", {}), execution=execution, seed=3, inputs=more.pop("inputs", {}),
        out=folder / "out", checkpoints=folder / "ckpt", metrics=MetricSpool(folder / "metrics.jsonl"),
        stop=more.pop("stop", lambda: False), progress=lambda what, share, figures: None, home=home, say=said.append,
    )  # fmt: skip


def requests(start: int = 0) -> list[SampleRequest]:
    return [SampleRequest(start + i, prompt(i), i, SETTINGS) for i in range(5)]


def record(home: Path) -> services.Service:
    return next(s for s in services.records(home) if s.name.startswith(services.MODEL))


def test_nodes_share_a_server_that_ends_with_the_run(home: Path) -> None:
    pids: list[int] = []
    for name in ("one", "two"):
        node = context(home, spec(), name)
        with node.at_end:
            sampler = sampler_for(node, POLICY, "fp32")
            assert isinstance(sampler, VLLMSampler)
            found = sampler.generate(requests())
            expected = LocalSampler(POLICY, "v").generate(requests())
            assert [c.ids for c in found] == [c.ids for c in expected]
            assert {c.policy_version for c in found} == {f"{name}/start/{POLICY.digest[:12]}"}
        process = record(home).process
        assert process is not None
        pids.append(process.pid)
    assert pids[0] == pids[1]
    (owner,) = record(home).owners
    assert owner.pid == os.getpid()
    began = time.monotonic()
    services.release_models(home)
    assert time.monotonic() - began < 12
    assert not process.alive
    assert [p.suffix for p in (home / "services").iterdir() if p.name.endswith(".json")] == []
    assert not any(home.glob("model-*"))


def test_a_server_gets_none_of_the_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "NOTIFY_URL", "VLLM_API_KEY", "NVIDIA_API_KEY", "SOMETHING_NEW")
    for name in secret:
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("VLLM_MISNAMED", "sk-canary")  # what has the form of a key is one
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of this node, not of a server
    for name in ("CUDA_VISIBLE_DEVICES", "VLLM_LOGGING_LEVEL", "OMP_PROC_BIND", "LC_TIME", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "kept")
    ModelServer(Caller(home, "node", lambda: False, print), spec(), POLICY, "fp32").release()
    process = record(home).process
    assert process is not None
    words = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
    got = dict(word.split("=", 1) for word in words if word)
    assert not [name for name, value in got.items() if "canary" in value]
    assert "OMP_NUM_THREADS" not in got
    assert {name for name, value in got.items() if value == "kept"} == {
        "CUDA_VISIBLE_DEVICES", "VLLM_LOGGING_LEVEL", "OMP_PROC_BIND", "LC_TIME", "LD_LIBRARY_PATH",
    }  # fmt: skip
    assert got["PATH"] == os.environ["PATH"]
    assert got["HF_HUB_OFFLINE"] == "1"  # what tutelage sets itself
    assert got["VLLM_SERVER_DEV_MODE"] == "1"


def test_arguments_of_a_program_come_before_what_tutelage_sets(home: Path) -> None:
    more = spec().model_copy(update={"arguments": ["--max-num-seqs=3", "--host=0.0.0.0", "--api-key", "x"]})
    ModelServer(Caller(home, "node", lambda: False, print), more, POLICY, "fp32").release()
    process = record(home).process
    assert process is not None
    words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    theirs = [words.index(word) for word in more.arguments]
    assert words.index("--max-num-seqs") < min(theirs)  # a program may choose otherwise
    for name in ("--host", "--port", "--model", "--served-model-name", "--logprobs-mode", "--generation-config"):
        assert words.index(name) > max(theirs)


def test_a_server_that_is_killed_is_started_again_once_and_asked_again(home: Path) -> None:
    said: list[str] = []
    node = context(home, spec("dies_once"), said=said)
    with node.at_end:
        sampler = sampler_for(node, POLICY, "fp32")
        assert isinstance(sampler, VLLMSampler)
        found = sampler.generate(requests())
        assert [c.ids for c in found] == [c.ids for c in LocalSampler(POLICY, "v").generate(requests())]
        assert sampler.restarts == 1
        assert 1 <= sampler.repeated <= 5
        assert "the model server died once" in said[0]
        assert "repeated" in said[0]
        process = record(home).process
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(ServiceError, match=r"died twice in this node .*lower run\.sampler\.cache_gb"):
            sampler.generate(requests(100))


def test_a_server_that_always_dies_fails_the_node(home: Path) -> None:
    node = context(home, spec("dies_always"))
    with node.at_end:
        sampler = sampler_for(node, POLICY, "fp32")
        with pytest.raises(ServiceError, match="died twice in this node"):
            sampler.generate(requests())


def test_one_node_at_a_time_and_a_stop_ends_the_wait(home: Path) -> None:
    told: list[str] = []
    caller = Caller(home, "first", lambda: False, told.append)
    held = ModelServer(caller, spec(), POLICY, "fp32")
    stop = threading.Event()
    waiting = Caller(home, "second", stop.is_set, lambda what: (told.append(what), stop.set()))
    with pytest.raises(Interrupted):
        ModelServer(waiting, spec(), POLICY, "fp32")
    assert told[-1] == "waiting: first uses the model server"
    held.release()
    ModelServer(Caller(home, "third", lambda: False, told.append), spec(), POLICY, "fp32").release()


def test_what_cannot_start_says_why(home: Path) -> None:
    caller = Caller(home, "node", lambda: False, print)
    nowhere = VLLMSampling(kind="vllm", python="no/such/python")
    with pytest.raises(ProgramError, match=r"run\.sampler\.python: .*`make vllm`.*run\.sampler\.kind=local"):
        ModelServer(caller, nowhere, POLICY, "fp32")
    with pytest.raises(ServiceError, match=r"ended while it started; its log .* ends: .*AssertionError: nonsense"):
        ModelServer(caller, spec("nonsense"), POLICY, "fp32")
    node = context(home, VLLMSampling(kind="vllm", url="http://127.0.0.1:9"))
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9/v1/models: no answer"):
        sampler_for(node, POLICY, "fp32")


def test_a_killed_driver_leaves_no_server(home: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.flows.test_model_servers import *\n"
        "ModelServer(Caller(Path(sys.argv[1]), 'node', lambda: False, print), spec(), POLICY, 'fp32')\n"
        "print('up', flush=True); time.sleep(60)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert any(line == "up\n" for line in driver.stdout)
    process = record(home).process
    assert process is not None
    driver.kill()
    driver.wait()
    driver.stdout.close()
    until = time.monotonic() + 15
    while process.alive:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert "its server is gone" in services.reconcile(home)[0]


# --- bodies of nodes


@torch.no_grad()
def stopping(policy: LoadedPolicy) -> LoadedPolicy:
    """Make an untrained policy end about half of its turns."""
    ids = torch.arange(policy.tokenizer.size)[:, None]
    hidden = policy.model.hidden(ids)[:, 0].mean(0)
    policy.model.embed.weight[policy.template.stop_ids[0]] = 8.0 * hidden / hidden.dot(hidden)
    return policy


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    save_policy(stopping(counter_policy(max_length=200)), folder / "policy")
    (folder / "decision.json").write_text('{"go": true}')
    problems = environment_for("desk", DESK).problems("train", 6, 1)
    (folder / "records.jsonl").write_text("".join(json.dumps(to_dict(p)) + "\n" for p in problems))
    return folder


def params(**more: Any) -> dict[str, Any]:
    scratch = ScratchPolicy(kind="scratch", tokenizer=BPETokenizer(kind="bpe"))
    whole = {
        "policy": Policy(init=scratch), "agent": ToolLoop(max_new_tokens=24), "reward": Reward(outcome={"state": 1.0}),
        **more,
    }  # fmt: skip
    judged: dict[str, Any] = {k: v.model_dump(mode="json", by_alias=True) for k, v in whole.items()}
    judged["environments"] = {"desk": DESK.model_dump(mode="json")}
    judged["verifiers"] = {"state": EnvironmentState(kind="environment_state").model_dump(mode="json")}
    return judged | {"data": {"train": None}}


def test_preflight_and_grpo_run_on_a_server_of_somebody_else(home: Path, tmp_path: Path, start: Path) -> None:
    policy = load_policy(start / "policy")
    export_for_server(policy, tmp_path / "theirs", "fp32", max_length=200)
    algorithm = GRPO(type="grpo", group_size=2, problems_per_step=2, steps=2, max_flat_steps=None)
    given = {"policy": start, "data.train": start, "decision": start}
    with CompletionsServer(tmp_path / "theirs", "their-own-name") as server:
        by_url = VLLMSampling(kind="vllm", url=server.url)
        asked = params(algorithm=algorithm, preflight=Preflight(problems=3, samples=2), needs=Needs())
        node = context(home, by_url, "preflight", params=asked, inputs=given)
        with node.at_end:
            policy_gradient.preflight(node)
        node = context(home, by_url, "rl", params=params(algorithm=algorithm), inputs=given)
        with node.at_end:
            policy_gradient.train(node)
        assert server.resets == 4  # each node's start, and each step
        assert not list((home / "served").iterdir())  # no weights stay behind
        node = context(home, by_url, "fails")

        def fails() -> None:
            with node.at_end:
                sampler_for(node, policy, "fp32")
                assert (home / "served" / "fails" / "model.safetensors").exists()
                raise KeyError("weights")

        with pytest.raises(KeyError):
            fails()
        assert not list((home / "served").iterdir())
    rollouts = list(read_shards(home / "nodes" / "rl" / "out" / "trajectories"))
    assert {t.sampling["sampler"] for t in rollouts} == {"vllm tiny-1 fp32"}
    versions = [name for t in rollouts for name, _ in t.policy_versions]
    assert {v.rpartition("/")[0] for v in versions} == {"rl/0", "rl/1"}
    assert inputs.execution(node).sampler == by_url


@pytest.mark.slow
def test_a_whole_program_runs_on_a_server(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    program = Path(__file__).parents[2] / "specs" / "programs" / "beginner.yaml"
    sampler = {"kind": "vllm", "python": sys.executable, "server": "tests.tasks.episodes.completions_server"}
    sets = [word for k, v in sampler.items() for word in ("--set", f"run.sampler.{k}={v}")]
    code = main(["run", str(program), "--smoke", "--no-services", "--json", *sets])
    assert code in (0, 3, 7), capsys.readouterr()
    assert not list(services.records(home))
    shards = [p.parent for p in home.glob("nodes/*/out/trajectories/summary.parquet")]
    assert shards
    assert {t.sampling["sampler"] for s in shards for t in read_shards(s)} == {"vllm tiny-1 fp32"}
