"""What every spec shares: frozen, no unknown key, no coercion between kinds of value."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _flag(value: Any) -> Any:
    """Read the words people write for a switch; only fields that are switches do so."""
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(_flag)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Shares = Annotated[tuple[Share, Share], Field(strict=False)]
"""Two shares, written as a list."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]
SetName = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*(\.(demonstrations|train|golden|hidden))?$", max_length=79)
]
"""A data set's name, or `<environment>.train` and so on for a set that every environment has without being declared."""


class Spec(BaseModel):
    """A frozen piece of a program; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
    """A validator is built when its class is first used: `tutelage check` needs one and not thirty."""
