"""One place where a teacher that shows probabilities meets the policy: probes decide whether their tokens are the same."""

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
from tasks.protocols import EarlyTeacher, TokenTeacher
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.equality import difference
from tasks.tokens.frames import Frame

Over = Literal["full", "top_k", "sampled"]
System = Callable[[Trajectory], str]


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
    over: Over,
    system: System | None = None,
) -> TokenTeacher:
    """Return a teacher of this process, as `in_policy_tokens` does."""
    model = OpenTeacher(
        name,
        teacher.model,
        precision=scoring.precision,
        micro_batch_tokens=scoring.micro_batch_tokens,
        device=scoring.device,
    )
    return in_policy_tokens(model, (teacher.tokenizer, teacher.frame), policy, align, over=over, system=system)


def in_policy_tokens(
    teacher: EarlyTeacher,
    its: tuple[AnyTokenizer, Frame],
    policy: LoadedPolicy,
    align: Alignment,
    *,
    over: Over,
    system: System | None = None,
) -> TokenTeacher:
    """Return a teacher that speaks of the policy's tokens: itself, or what stands between where it has others.

    ProgramError where it has others and `over` compares vocabularies. `system` is what a template with a system turn says
    there, for conversations in the policy's that have none.
    """
    if (apart := tokens_apart(its, policy)) is None:
        return teacher
    if over != "sampled":
        raise ProgramError(
            f"teachers.{teacher.name}: its tokens are not the policy's ({apart}), so that their distributions cannot be "
            f"compared (over: {{kind: {over}}}); write over: {{kind: sampled}}, which compares texts, or name a teacher "
            "with the policy's tokenizer"
        )
    own = teacher_of(policy)
    return OtherTokenizerTeacher(teacher, (own.tokenizer, own.frame), its, align, system)


def tokens_apart(its: tuple[AnyTokenizer, Frame], policy: LoadedPolicy) -> str | None:
    """Return in words how a teacher's tokens or template differ from the policy's; None where they do not."""
    own, (tokenizer, frame) = teacher_of(policy), its
    apart = difference(own.tokenizer, tokenizer)
    if apart is None and frame.name != own.frame.name:
        apart = f"the policy's template is {own.frame.name}, the teacher's {frame.name}"
    return apart
