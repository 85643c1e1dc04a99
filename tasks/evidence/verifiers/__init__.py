"""Verifiers: the one place where a verifier's spec becomes code, tested before its first use."""

from pathlib import Path
from typing import assert_never

from specs.errors import VerifierError
from specs.verifiers import (
    EnvironmentState,
    ExactAnswer,
    ProcessVerifier,
    RewardModelVerifier,
    ToolCalls,
    ToolTrace,
    Verifier,
)
from tasks.protocols import VerifierRun


def verifier_for(name: str, spec: Verifier, model: Path | None = None) -> VerifierRun:
    """Return the verifier that a program calls `name`; VerifierError where it fails its own self-test.

    `model` is the folder of what a stage learnt, for verifiers that are learnt.
    """
    from tasks.evidence.verifiers.selftest import self_test

    failures = self_test(name, spec, model)
    if failures:
        raise VerifierError(
            f"verifiers.{name}: the self-test of {spec.kind} failed, so none of its verdicts can be believed: "
            f"{'; '.join(failures)}; this is a fault of the verifier, not of the program"
        )
    return build(name, spec, model)


def build(name: str, spec: Verifier, model: Path | None = None) -> VerifierRun:
    """Return the verifier of a spec, untested."""
    match spec:
        case EnvironmentState():
            from tasks.evidence.verifiers.environment_state import EnvironmentStateVerifier

            return EnvironmentStateVerifier(name, spec)
        case ToolTrace():
            from tasks.evidence.verifiers.tool_trace import ToolTraceVerifier

            return ToolTraceVerifier(name, spec)
        case ToolCalls():
            from tasks.evidence.verifiers.tool_calls import ToolCallsVerifier

            return ToolCallsVerifier(name, spec)
        case ExactAnswer():
            from tasks.evidence.verifiers.exact import ExactAnswerVerifier

            return ExactAnswerVerifier(name, spec)
        case ProcessVerifier():
            from tasks.evidence.verifiers import process

            return process.ProcessVerifier(name, spec)
        case RewardModelVerifier():
            from tasks.evidence.verifiers import reward_model

            if model is None:
                raise VerifierError(
                    f"verifiers.{name}: there is no model of stage {spec.stage} here; a reward model judges stages that "
                    "come after its own"
                )
            return reward_model.LearntVerifier(name, spec, model)
        case _:
            assert_never(spec)
