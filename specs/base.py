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
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]


class Spec(BaseModel):
    """A frozen piece of a program; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
