"""One place where a loaded teacher becomes a `TokenTeacher`: probes decide whether its tokens are the policy's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from specs.alignment import Alignment
from specs.errors import ProgramError
from specs.records import Trajectory
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.other_tokenizer import OtherTokenizerTeacher
from tasks.policy.foreign import LoadedTeacher, teacher_of
from tasks.policy.store import LoadedPolicy
from tasks.tokens.equality import difference


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a teacher in process is run."""

    precision: Literal["fp32", "bf16"] = "fp32"
    micro_batch_tokens: int = 8192
    device: str = "cpu"


def open_token_teacher(
    name: str,
    teacher: LoadedTeacher,
    policy: LoadedPolicy,
    align: Alignment,
    *,
    scoring: Scoring,
    over: Literal["full", "top_k", "sampled"],
    system: Callable[[Trajectory], str] | None = None,
) -> OpenTeacher | OtherTokenizerTeacher:
    """Return the teacher. ProgramError where it has other tokens than the policy and `over` compares vocabularies.

    `system` is what a template with a system turn says there, for conversations in the policy's that have none.
    """
    model = OpenTeacher(
        name,
        teacher.model,
        precision=scoring.precision,
        micro_batch_tokens=scoring.micro_batch_tokens,
        device=scoring.device,
    )
    own = teacher_of(policy)
    apart = difference(own.tokenizer, teacher.tokenizer)
    if apart is None and teacher.frame.name != own.frame.name:
        apart = f"the policy's template is {own.frame.name}, the teacher's {teacher.frame.name}"
    if apart is None:
        return model
    if over != "sampled":
        raise ProgramError(
            f"teachers.{name}: its tokens are not the policy's ({apart}), so that their distributions cannot be compared "
            f"(over: {{kind: {over}}}); write over: {{kind: sampled}}, which compares texts, or name a teacher with the "
            "policy's tokenizer"
        )
    return OtherTokenizerTeacher(model, (own.tokenizer, own.frame), (teacher.tokenizer, teacher.frame), align, system)
