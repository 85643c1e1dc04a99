"""Cross references of reward models: the stage that makes one, the verifier that uses it, and where it may judge."""

from specs.checks import Checks
from specs.positions import KeyPath, listed
from specs.verifiers import RewardModelVerifier, learnt


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
