"""A teacher that the program trains first: a model of its own size, with a tokenizer of its own."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specs.alignment import Alignment
from specs.base import Positive, SetName
from specs.policy import PolicyInit
from specs.routing import Signal
from specs.supervised import SFT
from specs.teachers import MeasuredTeacher


class TrainedTeacher(MeasuredTeacher):
    """A model that is trained on demonstrations before anyone asks it; the policy never sees these."""

    kind: Literal["trained"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = ("logprobs",)
    init: PolicyInit
    """Where its weights and its tokenizer come from, as for the policy."""
    template: Literal["policy", "builtin/compact@1", "builtin/chatml@1"] = "policy"
    """Chat template of its prompts; the policy's own where left out."""
    algorithm: SFT = SFT(type="sft")
    data: Annotated[list[SetName], Field(min_length=1)] | Annotated[dict[SetName, Positive], Field(min_length=1)]
    """Demonstrations, or sets of them with their weights."""
    align: Alignment = Alignment()
    """How its tokens are brought to the policy's where its tokenizer is another one."""
    gives: Annotated[list[Signal], Field(min_length=1)] = ["logprobs"]

    @property
    def reads(self) -> list[str]:
        """Return every data set that it is made from."""
        texts = [self.init.tokenizer.train_on] if self.init.kind == "scratch" else []
        return list(dict.fromkeys([*self.data, *texts]))
