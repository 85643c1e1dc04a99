"""Bodies of `evaluate`, `gate` and `report`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows import looks
from flows.answers import applied
from flows.context import NodeContext, Outcome
from flows.durable import digest_tree, write_durable
from specs.environments import Environments
from specs.errors import DataError
from specs.gates import Evaluation, Gate
from specs.records import Problem, Trajectory, problem_from
from specs.reward import Reward
from specs.strict_json import parse
from tasks.judging.evaluation import reward_range, summarise
from tasks.judging.gates import SETTLED, Evidence, decide, result_of
from tasks.judging.results import Evaluated, Unusable, try_evaluation, write_evaluation

HEADLINE = ("success", "success_greedy", "reward", "tool_success", "invalid_call_rate", "truncated_rate")


def read_problems(path: Path, *, may_be_empty: bool = False) -> list[Problem]:
    """Return the problems of a `records.jsonl`. DataError names the line that cannot be used."""
    problems: list[Problem] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            problems.append(problem_from(parse(line)))
        except (ValueError, TypeError) as e:
            raise DataError(f"{path}: line {number} is no problem ({e}); make the data set again") from e
    if not problems and not may_be_empty:
        raise DataError(f"{path}: it holds no problem; expected at least one")
    return problems


@dataclass(frozen=True, slots=True)
class _Rolled:
    """Judged tries, the digest of the policy that made them, and what is to be said of them."""

    sampled: list[Trajectory]
    greedy: list[Trajectory]
    digest: str
    notes: list[str]


def evaluate(node: NodeContext) -> Outcome:
    """Ask a policy every problem of a set, sampled and greedily, judge, and write metrics and trajectories."""
    from tasks.episodes.shards import write_latency, write_shards
    from tasks.loops.collect import drift_notes

    params = node.params
    spec = Evaluation.model_validate(params["evaluation"])
    reward = Reward.model_validate(params["reward"])
    environments = TypeAdapter(Environments).validate_python(params["environments"])
    pool = params["role"] == "regression"
    problems = read_problems(node.inputs["problems"] / "records.jsonl", may_be_empty=pool)
    folder = node.inputs["policy"] / "policy"
    rolled = _roll(node, folder, spec, problems) if problems else _Rolled([], [], "", [])
    sampled, greedy = rolled.sampled, rolled.greedy
    seen = [t.reward for t in (*sampled, *greedy) if t.reward is not None]
    turns = max((environments[p.environment].max_turns for p in problems), default=0)
    turns += params["agent"].get("max_requests", 0)  # replies of an agent of one's own that lead to no call
    scale = reward_range(reward, turns, seen)
    results, summary = summarise(
        problems, sampled, greedy, samples=spec.samples, confidence=spec.confidence, scale=scale
    )
    if sampled:
        write_shards(node.out / "trajectories", sampled)
    if greedy:
        write_shards(node.out / "greedy", greedy)
    write_latency(node.out / "notes" / "latency.jsonl", [*sampled, *greedy])
    whole = write_evaluation(
        node.out,
        results,
        {
            **summary,
            "policy_digest": digest_tree(folder),
            "policy_manifest": rolled.digest,
            "set": params["set"],
            "role": params["role"],
            "samples": spec.samples,
            "temperature": spec.temperature,
            "greedy": spec.greedy,
            "reward_range": list(scale),
            "seed": node.seed,
        },
    )
    node.metrics.log(0, **{k: v["value"] for k, v in whole["metrics"].items() if v["value"] is not None})
    outcome = _evaluated(whole, len(sampled) + len(greedy), sum(t.policy_tokens for t in (*sampled, *greedy)))
    outcome.notes += [*drift_notes([*sampled, *greedy]), *rolled.notes]
    return outcome


def _evaluated(summary: dict[str, Any], rollouts: int, tokens: int) -> Outcome:
    metrics: dict[str, float | None] = {}
    for name, found in summary["metrics"].items():
        metrics[name] = found["value"]
        if name in HEADLINE:
            metrics[f"{name}_low"], metrics[f"{name}_high"] = found["low"], found["high"]
    counts = summary["counts"]
    if not counts["problems"]:
        return Outcome(metrics=metrics, notes=["the pool holds no case yet, so nothing was asked"])
    notes = [
        f"{name} was not measured: no problem has a value"
        for name, found in summary["metrics"].items()
        if found["value"] is None and name not in ("recovery_rate", *(() if summary["greedy"] else ("success_greedy",)))
    ]
    lost = counts["asked"] - counts["valid"]
    if lost:
        notes.append(f"{lost} of {counts['asked']} samples have no verdict; they lower n and are no failures")
    metrics["invalid_share"] = counts["invalid_share"]
    return Outcome(metrics=metrics, cost={"rollouts": float(rollouts), "tokens": float(tokens)}, notes=notes)


def _roll(node: NodeContext, folder: Path, spec: Evaluation, problems: Sequence[Problem]) -> _Rolled:
    """Return the judged tries of the policy in `folder`; a killed evaluation goes on from those it has."""
    from flows.work import inputs
    from tasks.loops.collect import Draw, collect
    from tasks.loops.rollout_ledger import RolloutLedger
    from tasks.policy.store import load_policy

    policy = load_policy(folder, device=inputs.device(node))
    arena, _ = inputs.arena(node, policy)

    notes: list[str] = []

    def roll(samples: int, temperature: float, name: str) -> list[Trajectory]:
        def tell(done: int, total: int) -> None:
            node.progress(name, done / max(1, total), {"rollouts": float(done)})

        store = RolloutLedger(node.checkpoints / f"{name}.jsonl")
        draw = Draw(samples, temperature, node.seed, name)
        found = collect(arena, problems, draw, stop=node.stop, store=store, progress=tell).trajectories
        notes.extend(f"{name}: {text}" for text in store.notes())
        return found

    sampled = roll(spec.samples, spec.temperature, "sampled")
    return _Rolled(sampled, roll(1, 0.0, "greedy") if spec.greedy else [], policy.digest, notes)


def _evidence(node: NodeContext, question: looks.Question) -> Evidence:
    params = node.params
    sets: list[str] = params["sets"]
    started = _champion_now(node, sets)
    candidates: dict[str, dict[str, Evaluated | Unusable]] = {
        stage: {s: try_evaluation(node.inputs.get(f"candidate.{stage}.{s}")) for s in sets}
        for stage in params["candidates"]
    }
    baseline: dict[str, Evaluated | Unusable] | None = None
    name = params.get("baseline")
    given = {s: node.inputs[f"baseline.{s}"] for s in sets if f"baseline.{s}" in node.inputs}
    if name is not None or given:
        baseline = {s: try_evaluation(path) for s, path in given.items()}
    champion = (params.get("champion") or {}).get("digest")
    if started is not None:
        name, baseline = started
        found = next((e for e in baseline.values() if isinstance(e, Evaluated)), None)
        champion = champion if found is None else found.policy_digest
    return Evidence(
        candidates=candidates,
        baseline=baseline,
        baseline_name=name or "baseline",
        champion_digest=champion,
        former=list((params.get("champion") or {}).get("former") or ()),
        asked=[] if node.home is None else looks.asked_before(node.home, params["program"], question),
        contents=question.sets,
    )


def _champion_now(node: NodeContext, sets: list[str]) -> tuple[str, dict[str, Evaluated | Unusable]] | None:
    """Return the champion of the moment at which a round began, by its evaluations; None where there is none."""
    if "evidence" not in node.inputs:
        return None
    folder = node.inputs["evidence"]
    name = parse((folder / "start.json").read_text(encoding="utf-8"))["baseline"]
    if name is None:
        return None
    return name, {s: try_evaluation(folder / "baseline" / s) for s in sets if (folder / "baseline" / s).is_dir()}


def gate(node: NodeContext) -> Outcome:
    """Decide from the evaluations alone and write `gate.json`; inconclusive is answered as the gate declares.

    Where it is to be held, and a person answered this very record, the answer decides. The look is written down before
    the record is, so that nobody sees an answer that was not counted.
    """
    spec, params = Gate.model_validate(node.params["gate"]), node.params
    question = looks.question(params, {s: looks.content(node.inputs.get(f"data.{s}")) for s in params["sets"]})
    found = decide(spec, params["name"], _evidence(node, question))
    if node.home is not None and found.candidate_digest is not None and found.spent:
        looks.keep(node.home, params["program"], question, found.candidate_digest, alpha=found.spent, look=found.look)
    record = found.to_dict()
    if found.result == "held":
        record = applied(record, params.get("answers") or [], node.inputs)
        record["result"] = result_of(record["answer"], spec)
    data = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    write_durable(node.out / "gate.json", data + "\n")
    write_durable(node.out / "gate.txt", record["text"])
    return _decided(record, spec)


def _decided(record: dict[str, Any], spec: Gate) -> Outcome:
    answer = record["answer"]
    notes = [f"gate {record['gate']}: {answer.replace('_', ' ')}: {record['sentence']}", *record["notes"]]
    if answer == "inconclusive" and spec.on_inconclusive == "pass_on":
        notes.append("on_inconclusive is pass_on: the run goes on, nothing is promoted")
    metrics: dict[str, float | None] = {
        f"{r['metric']}_{r['set']}": r["value"] for r in record["rows"] if r["value"] is not None
    }
    metrics["passed"] = float(answer in ("pass", *SETTLED))
    return Outcome(result=record["result"], metrics=metrics, notes=notes)


def report(node: NodeContext) -> Outcome:
    """Write `report.html`, which depends on results alone, and `notes/report.html` with durations and notes too."""
    from flows.work.gathering import gather
    from tasks.judging.report import render

    data = gather(node)
    plain = replace(data, costs=[replace(c, seconds=None) for c in data.costs], notes=[])
    write_durable(node.out / "report.html", render(plain))
    notes = node.out / "notes"
    notes.mkdir(exist_ok=True)
    write_durable(notes / "report.html", render(data))
    return Outcome(notes=data.problems)
