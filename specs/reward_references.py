"""Checks of verifiers and reward: what counts, what dominates, and where a learnt reward may judge."""

from specs.checks import Checks
from specs.data import Demonstrations, Problems
from specs.dominance import dominance_of
from specs.environments import events_of
from specs.positions import KeyPath, listed
from specs.verifiers import RewardModelVerifier, ToolTrace, learnt

_READS = {"environment_state": "state", "exact": "answer", "tool_calls": "calls"}
"""What verifiers read of a problem's expected outcome."""
_EXPECTS = {"order_desk": ("state", "answer"), "bfcl": ("calls",)}
"""What the problems of an environment expect; those of a program of one's own are not known here."""


def verifiers(c: Checks) -> None:
    """Report verifiers that do not exist, count twice or not at all, cannot judge, and a reward under which failing may pay."""
    reward, names = c.program.reward, c.program.verifiers
    for i, name in enumerate(reward.must):
        c.known(("reward", "must", i), name, names, "a verifier")
    for part, weights in (("outcome", reward.outcome), ("soft", reward.soft)):
        for name in weights:
            c.known(("reward", part, name), name, names, "a verifier")
    _counted_twice(c)
    if not reward.outcome:
        text = f"outcome is missing: expected which of {listed(names)} decide success, with weights"
        c.wrong(("reward",), f"{text}, for example outcome: {{{next(iter(names))}: 1.0}}")
    for name in names:
        if name not in (*reward.must, *reward.outcome, *reward.soft):
            c.odd(("verifiers", name), "is no part of the reward, so nothing asks it; name it in outcome, soft or must")
    _dominance(c)
    _forbidden(c)
    _expected(c)
    earns = "process_per_error" if reward.process_per_error else "process_per_call"
    if bool(reward.process_cap) != bool(getattr(reward, earns)):
        other, written = (earns, "process_cap") if reward.process_cap else ("process_cap", earns)
        c.wrong(("reward", written), f"has no effect while {other} is 0; set both or neither")


def _counted_twice(c: Checks) -> None:
    reward = c.program.reward
    for name in reward.soft:
        if name in reward.outcome or name in reward.must:
            other = "the outcome" if name in reward.outcome else "must"
            c.wrong(("reward", "soft", name), f"{name} is also part of {other}; a verifier counts once")
    for i, name in enumerate(reward.must):
        if name in reward.outcome:
            text = f"{name} is also part of the outcome, and where a hard condition is broken nothing else counts; name it in one"
            c.wrong(("reward", "must", i), text)
    c.once(("reward", "must"), reward.must)


def _dominance(c: Checks) -> None:
    """Report a reward under which a failure can earn as much as a success."""
    if c.program.reward.outcome:
        proof = dominance_of(c.program)
        if not proof.holds:
            c.wrong(("reward",), f"{proof.text}; expected every success to earn more than every failure")


def _forbidden(c: Checks) -> None:
    events = dict.fromkeys(event for e in c.program.environments.values() for event in events_of(e))
    for name, verifier in c.program.verifiers.items():
        for i, event in enumerate(verifier.forbid if isinstance(verifier, ToolTrace) else ()):
            c.known(("verifiers", name, "forbid", i), event, events, "an event of an environment")


def _expected(c: Checks) -> None:
    """Report verifiers that read what no problem of an environment expects: every verdict would be invalid."""
    made = {s.environment for s in c.program.data.values() if isinstance(s, Demonstrations | Problems)}
    judged = (*c.program.reward.must, *c.program.reward.outcome, *c.program.reward.soft)
    for name, verifier in c.program.verifiers.items():
        for environment in (e for e in c.program.environments if e in made and name in judged):
            kind = c.program.environments[environment].kind
            reads = _READS.get(verifier.kind)
            if reads is not None and kind in _EXPECTS and reads not in _EXPECTS[kind]:
                fitting = [k for k, what in _READS.items() if what in _EXPECTS[kind]]
                text = f"found {verifier.kind}, but problems of {environment} ({kind}) expect no {reads}"
                c.wrong(
                    ("verifiers", name, "kind"), f"{text}: every verdict would be invalid; expected {listed(fitting)}"
                )


def reward_models(c: Checks) -> None:
    """Report reward models that nothing makes, that judge alone, or that nothing uses."""
    program = c.program
    makers = [s.id for s in program.stages if s.algorithm.type == "reward_model"]
    used: set[str] = set()
    for name, verifier in program.verifiers.items():
        if isinstance(verifier, RewardModelVerifier):
            path: KeyPath = ("verifiers", name, "stage")
            if c.known(path, verifier.stage, makers, "a stage of type reward_model"):
                used.add(verifier.stage)
                _judges_something(c, name, verifier.stage)
    _soft_only(c)
    for i, stage in enumerate(program.stages):
        if stage.id in makers and stage.id not in used:
            text = f"{stage.id} makes a reward model that no verifier uses: verifiers: {{NAME: {{kind: reward_model, stage: {stage.id}}}}}"
            c.odd(("stages", i), text)
    if program.flywheel is not None:
        for i, stage in enumerate(program.flywheel.round.stages):
            if stage.algorithm.type == "reward_model":
                text = "found reward_model, expected it in the main part: a round would judge itself by what it has just learnt"
                c.wrong(("flywheel", "round", "stages", i, "algorithm"), text)


def _judges_something(c: Checks, name: str, stage: str) -> None:
    """Warn where no stage after it rolls anything out."""
    after = c.program.stages[c.stages.index(stage) + 1 :]
    if not any(s.algorithm.type not in ("sft", "reward_model", "prune", "quantize") for s in after):
        c.odd(
            ("verifiers", name), f"no stage after {stage} rolls out, so that it judges nothing; put {stage} before them"
        )


def _soft_only(c: Checks) -> None:
    """A learnt reward is a guess about outcomes: it may grade them, and never decide them."""
    reward, names = c.program.reward, set(learnt(c.program.verifiers))
    fixed = [n for n in c.program.verifiers if n not in names]
    for part, given in (("outcome", list(reward.outcome)), ("must", reward.must)):
        for i, name in enumerate(given):
            if name in names:
                at = name if part == "outcome" else i
                text = f"found {name}, a reward model, which is part of soft alone; expected one of {listed(fixed) or 'none'}"
                c.wrong(("reward", part, at), f"{text}, which does not learn what it decides")
