from pathlib import Path

import pytest

from tests.specs.programs import load, mistakes

DEMOS = "  demos: {kind: demonstrations, environment: desk, size: 50}\n"
GOLDEN = "split: golden, size: 45, role: golden}"
VERIFIER = "  order_state: {kind: environment_state}\n"
TWO = (VERIFIER, f"{VERIFIER}  tools: {{kind: tool_trace}}\n")
GATE = "      - {metric: success, set: golden, at_least: 0.5}\n"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("from: teach", "from: tech")], "x.yaml:19:5 stages[1].from: found 'tech', expected an earlier stage (teach or init); did you mean teach?"),
        ([("from: teach", "from: rl")], "stages[1].from: found rl, which does not come before rl"),
        ([("id: rl", "id: teach"), ("    from: teach\n", "")], "stages[1].id: found teach a second time"),
        ([("id: rl", "id: champion")], "stages[1].id: found champion, which has another meaning"),
        ([("data: [demos]", "data: [demo]")], "stages[0].data[0]: found 'demo', expected a data set (demos, train, golden, desk.demonstrations"),
        ([("data: [train]", "data: [desk.trian]")], "stages[1].data[0]: found 'desk.trian'"),
        ([("data: [demos]", "data: [train]")], "stages[0].data[0]: found train, which holds problems; sft trains on demonstrations"),
        ([("data: [train]", "data: [demos]")], "stages[1].data[0]: found demos, which holds demonstrations; grpo trains on problems"),
        ([("data: [train]", "data: [golden]")], "stages[1].data[0]: found golden, whose role is golden"),
        ([("data: [train]", "data: [desk.hidden]")], "stages[1].data[0]: found desk.hidden, whose role is hidden"),
        ([(GOLDEN, "split: golden, size: 45, role: train}"), ("data: [train]", "data: [golden]")], "drawn from the split golden, which never trains"),
        ([("sets: [golden]", "sets: [golden, train]")], "stages[1].data[0]: found train, which evaluation asks as well; what trains cannot judge"),
        ([("data: [train]", "data: [train, train]")], "stages[1].data[1]: train is named twice"),
        ([("type: grpo", "type: grpo\n      replay: {demonstrations: {sets: [demo]}}")], "stages[1].algorithm.replay.demonstrations.sets[0]: found 'demo', expected a data set"),
        ([("type: grpo", "type: grpo\n      replay: {demonstrations: {sets: [train]}}")], "stages[1].algorithm.replay.demonstrations.sets[0]: found train, which holds problems; replay.demonstrations takes demonstrations"),
        ([("type: grpo", "type: grpo\n      replay: {demonstrations: {sets: [demos, demos]}}")], "stages[1].algorithm.replay.demonstrations.sets[1]: demos is named twice"),
        ([("type: grpo", "type: grpo\n      adversarial: 0.2")], "stages[1].algorithm.adversarial: asks for adversarial problems, but there are none: set environments.NAME.adversarial above 0"),
        ([("type: grpo", "type: gigpo\n      turn_rewards: true")], "stages[1].algorithm.turn_rewards: no turn earns anything by itself: give reward a process_cap with process_per_call or process_per_error, or name in reward.soft a reward model that learns turns"),
        ([("type: grpo", "type: ppo\n      turn_rewards: true\n      replay: {history: {}}")], "turn_rewards: replay.history keeps the whole reward of a trajectory alone; leave one out"),
        ([("type: grpo", "type: rft\n      require_success: false"), ("      group_size: 8\n", "")], "stages[1].algorithm.require_success: found false, expected true: a failed trajectory is never an example"),
        ([("algorithm:\n      type: grpo", "else_first: {type: rft, require_success: false}\n    algorithm:\n      type: grpo")], "stages[1].else_first.require_success: found false, expected true"),
        ([("type: grpo", "type: grpo\n      replay: {}")], "expected history, demonstrations or both"),
        ([("type: grpo", "type: grpo\n      curriculum: {bnd: [0, 1]}")], "stages[1].algorithm.curriculum.bnd: unknown key; did you mean band?"),
        ([("data: [train]", "data: []")], "stages[1].data: found no data set"),
        ([("type: grpo\n", "type: self_evolve\n      experience: [teach]\n")], "stages[1].algorithm.experience[0]: found 'teach', expected a policy-gradient stage before it (none)"),
        ([("type: grpo\n", "type: self_evolve\n      learners: {choose_on: golden}\n")], "stages[1].algorithm.learners.choose_on: found golden, which judges by gate ship: what chooses a policy cannot judge it as well"),
        ([("type: grpo\n", "type: self_evolve\n      learners: {choose_on: train}\n")], "stages[1].algorithm.learners.choose_on: found train, which is not evaluated; add it to evaluation.sets or evaluation.at_the_end"),
        ([("type: grpo\n", "type: self_evolve\n      learners: {choose_on: gold}\n")], "stages[1].algorithm.learners.choose_on: found 'gold'"),
        ([("type: grpo\n", "type: self_evolve\n      growth: {calls: [2, 6, 7]}\n")], "stages[1].algorithm.growth.calls: found 6, 7, but its problems take 2, 3, 4, 5 calls; name some of these"),
        ([("type: grpo\n", "type: self_evolve\n      problems_per_step: 4\n      growth: {share: 0.1}\n")], "stages[1].algorithm.growth.share: found 0.1, which of 4 problems a step is none; raise it, or problems_per_step"),
        ([("type: grpo\n", "type: self_evolve\n      growth: {}\n"), ("{kind: order_desk}", "{kind: bfcl}")], "stages[1].algorithm.growth: an environment of kind bfcl makes no new problems"),
        ([("type: grpo\n", "type: self_evolve\n      experience: [rl, rl]\n")], "stages[1].algorithm.experience[1]: rl is named twice"),
        ([("type: sft", "type: quantize"), ("data: [demos]", "data: {demos: 2}")], "stages[0].data: quantize measures on all of its demonstrations alike and reads no weights; write data: [demos]"),
        ([("type: sft", "type: prune\n      layers: 3")], "stages[0].algorithm.layers: found 3, but the policy has 3 layers; at least one must stay"),
        ([("policy:\n", "policy:\n  adapter: {kind: lora, stages: []}\n")], "policy.adapter.stages: found no stage, so that none trains it"),
        ([("policy:\n", "policy:\n  adapter: {kind: lora, stages: [rl, rl]}\n")], "policy.adapter.stages[1]: rl is named twice"),
        ([("policy:\n", "policy:\n  adapter: {kind: lora, stages: [teach]}\n"), ("type: sft", "type: quantize")], "policy.adapter.stages[0]: found teach, which makes the policy smaller and trains no adapter"),
        ([("environment: desk, size: 50", "environment: dest, size: 50")], "data.demos.environment: found 'dest', expected an environment (desk); did you mean desk?"),
        ([("size: 50", "by: gold, size: 50")], "data.demos.by: found gold, but an environment of kind order_desk has only clerk"),
        ([("size: 50", "split: hidden, size: 50")], "data.demos.split: found hidden, but demonstrations train"),
        ([("size: 50", "spoil: {types: [mial]}, size: 50")], "data.demos.spoil.types[0]: found 'mial', expected a problem type of desk"),
        ([("size: 50", "spoil: {no_recovery: [plaec]}, size: 50")], "data.demos.spoil.no_recovery[0]: found 'plaec', expected a problem type of desk"),
        ([("size: 50", "spoil: {no_recovery: [place]}, size: 50")], "data.demos.spoil.no_recovery: has no effect: no tool of desk fails; declare environments.desk.faults"),
        ([(DEMOS, f"{DEMOS}  extra: {{kind: file, environment: desk, path: none.jsonl}}\n")], "data.extra.path: no such file: none.jsonl"),
        ([(DEMOS, f"{DEMOS}  apart: {{kind: problems, environment: desk, size: 1}}\n")], "data.apart: this name is taken"),
        ([(DEMOS, f"{DEMOS}  d.train: {{kind: problems, environment: desk, size: 1}}\n")], "data.d.train: a name with a dot belongs to an environment, but there is no d"),
        ([("train_on: demos", "train_on: train")], "policy.init.tokenizer.train_on: found train, which holds problems; expected demonstrations"),
        ([("train_on: demos", "train_on: demo")], "policy.init.tokenizer.train_on: found 'demo'"),
        ([("kind: scratch", "kind: scratch, heads: 3, kv_heads: 2")], "policy.init.kv_heads: found 2, expected a divisor of heads (3)"),
        ([("kind: scratch", "kind: scratch, hidden_size: 100, heads: 8")], "policy.init.hidden_size: found 100 for 8 heads"),
        ([("verifiers:", "agent: {max_new_tokens: 300}\nverifiers:")], "agent.max_new_tokens: found 300, expected less than policy.init.max_length (256)"),
        ([("kind: order_desk", "kind: bfcl"), ("size: 50", "by: gold, size: 50")], "agent.call_format: found flat, expected nested or react"),
        ([TWO], "reward: outcome is missing: expected which of order_state or tools decide success"),
        ([TWO, ("stages:", "reward: {outcome: {order_stat: 1}}\nstages:")], "reward.outcome.order_stat: found 'order_stat', expected a verifier"),
        ([TWO, ("stages:", "reward: {outcome: {tools: 1}, must: [tols]}\nstages:")], "reward.must[0]: found 'tols', expected a verifier (order_state or tools); did you mean tools?"),
        ([TWO, ("stages:", "reward: {outcome: {tools: 1}, soft: {tools: 0.1}}\nstages:")], "reward.soft.tools: tools is also part of the outcome"),
        ([("stages:", "reward: {process_cap: 0.1}\nstages:")], "reward.process_cap: has no effect while process_per_call is 0"),
        ([TWO, ("stages:", "reward: {outcome: {order_state: 1}, soft: {tools: 1.5}}\nstages:")], "reward: the worst success earns 1"),
        ([("kind: environment_state", "kind: tool_trace, forbid: [repeated_mial]")], "verifiers.order_state.forbid[0]: found 'repeated_mial', expected an event of an environment"),
        ([("data: [demos]", "data: [demos]\n    else_first: rft")], "stages[0].else_first: is not read by sft; only policy gradients have a preflight"),
        ([("data: [demos]", "data: [demos]\n    needs: {success: 0.1}")], "stages[0].needs: is not read by sft"),
        ([("data: [train]", "data: [train]\n    tries: 2")], "stages[1].tries: has no effect without else_first"),
        ([("sets: [golden]", "sets: [golden, goldn]")], "evaluation.sets[1]: found 'goldn'"),
        ([("sets: [golden]", "sets: [golden, demos]")], "evaluation.sets[1]: found demos, which holds demonstrations"),
        ([("sets: [golden]", "sets: [golden, golden]")], "evaluation.sets[1]: golden is named twice"),
        ([("sets: [golden]", "sets: [golden], samples: 2, temperature: 0")], "evaluation.samples: found 2 at temperature 0"),
        ([("set: golden", "set: gold")], "gates.ship.require[0].set: found 'gold', expected a data set"),
        ([("set: golden", "set: desk.hidden")], "gates.ship.require[0].set: found desk.hidden, which is not evaluated"),
        ([("metric: success,", "metric: success_greedy,"), ("sets: [golden]", "sets: [golden], greedy: no")], "found success_greedy, but evaluation.greedy is off"),
        ([("metric: success,", "metric: regressed_cases,"), ("at_least: 0.5", "at_most: 0")], "gates.ship.require[0].set: found golden, but regressed_cases counts in a set whose role is regression"),
        ([("    require:", "    candidate: rll\n    require:")], "gates.ship.candidate: found 'rll', expected a stage, last or best"),
        ([("    require:", "    baseline: {stage: tech}\n    require:")], "gates.ship.baseline.stage: found 'tech', expected a stage or init"),
        ([("    require:", "    baseline: {stage: rl}\n    require:")], "gates.ship.baseline.stage: found rl, which is the candidate itself"),
        ([("at_least: 0.5", "better_by: 0.1")], "gates.ship.require: at first there is no champion"),
        ([TWO, ("stages:", "reward: {outcome: {order_state: 1}, must: [order_state]}\nstages:")], "reward.must[0]: order_state is also part of the outcome"),
        ([TWO, ("stages:", "reward: {outcome: {order_state: 1}, must: [tools], soft: {tools: 0.1}}\nstages:")], "reward.soft.tools: tools is also part of must"),
        ([("kind: environment_state", "kind: tool_calls")], "verifiers.order_state.kind: found tool_calls, but problems of desk (order_desk) expect no calls: every verdict would be invalid; expected environment_state or exact"),
        ([TWO, ("stages:", "reward: {outcome: {tools: 1}, soft: {order_state: 0.3}, on_truncation: -0.9}\nstages:")], "reward: the worst success earns 0.1 (1, -0.9 where cut), the best failure 0.3"),
        ([("at_least: 0.5", "at_least: 50")], "gates.ship.require[0]: at_least: found 50, expected a share from 0 to 1; for 50 % write 0.5"),
        ([("at_least: 0.5", "at_most: -1")], "gates.ship.require[0]: at_most: found -1, expected a share from 0 to 1"),
        ([("metric: success,", "metric: regressed_cases,")], "gates.ship.require[0]: regressed_cases is a count: expected at_most with 0 or more"),
        ([(DEMOS, f"{DEMOS}  extra: {{kind: file, environment: desk, path: \"d/${{env:X}}.jsonl\"}}\n")], "data.extra.path: found d/${env:X}.jsonl; a path with a reference must begin with it and be absolute"),
        ([(GOLDEN, f"{GOLDEN[:-1]}, where: \"not (problem.type in ['mail', 'mial'])\"}}")], "data.golden.where: found 'mial', expected a problem type of desk"),
        ([(GOLDEN, f"{GOLDEN[:-1]}, where: \"problem.typ == 'mail'\"}}")], "data.golden.where: column 1: unknown name problem.typ"),
    ],
)  # fmt: skip
def test_mistakes_across_sections(tmp_path: Path, pairs: list[tuple[str, str]], message: str) -> None:
    lines = mistakes(tmp_path, *pairs)
    assert any(message in line for line in lines), lines


def test_what_is_odd_is_a_warning(tmp_path: Path) -> None:
    other = "  spare: {kind: problems, environment: spare, size: 1}\n"
    loaded = load(
        tmp_path,
        TWO,
        (DEMOS, f"{DEMOS}{other}"),
        ("  desk: {kind: order_desk}\n", "  desk: {kind: order_desk}\n  spare: {kind: order_desk}\n"),
        ("stages:", "reward: {outcome: {order_state: 1}}\nstages:"),
    )
    texts = [str(w).removeprefix(f"{tmp_path}/") for w in loaded.warnings]
    assert texts == [
        "x.yaml:15:3 verifiers.tools: is no part of the reward, so nothing asks it; name it in outcome, soft or must",
        "x.yaml:10:3 data.spare: is used by no stage, evaluation or gate; it is not made",
        "x.yaml:7:3 environments.spare: is used by no data set",
    ]


def test_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("{}\n")
    file = "  extra: {kind: file, environment: desk, path: p.jsonl, role: regression}\n"
    load(tmp_path, (DEMOS, f"{DEMOS}{file}"), ("sets: [golden]", "sets: [golden, extra]"))
    load(
        tmp_path,
        ("from: teach", "from: init"),
        ("    require:", "    baseline: {stage: init}\n    require:"),
        ("at_least", "better_by"),
    )
    react = ("verifiers:", "agent: {call_format: react}\nverifiers:")
    load(
        tmp_path,
        ("kind: order_desk", "kind: bfcl"),
        ("size: 50", "by: gold, size: 50"),
        ("kind: environment_state", "kind: tool_calls"),
        react,
    )
    load(tmp_path, ("data: [train]", "data: {train: 2}\n    else_first: rft\n    tries: 2\n    needs: {success: 0.2}"))
    load(
        tmp_path,
        ("at_least: 0.5", "better_by: 0.1"),
        ("    require:", "    baseline: {alias: champion, first: init}\n    require:"),
    )
    load(
        tmp_path,
        (GOLDEN, f"{GOLDEN[:-1]}, where: \"problem.type in ['mail'] and 'adversarial' not in problem.tags\"}}"),
    )
    earns = "verifiers:", "reward: {process_cap: 0.1, process_per_call: 0.02}\nverifiers:"
    load(tmp_path, earns, ("type: grpo", "type: turn_ppo\n      turn_rewards: true"))
    assert GATE
