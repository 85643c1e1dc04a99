"""The instruction texts of teacher signals: files in `specs/prompts`, one per version. A version's text never changes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specs.errors import ProgramError
from specs.routing import Signal

FOLDER = Path(__file__).with_name("prompts")
CURRENT: dict[Signal, str] = {
    "action": "action@1",
    "critique": "critique@1",
    "score": "score@1",
    "rank": "rank@1",
    "sample": "sample@1",
}
"""The version in use by signal. It is part of every key; an edited text is a new version."""
RANKED_ACTIONS = "action_rank@1"
"""Of `action` where an order is asked for."""
DESCRIBED_SCORES = "score_described@1"
"""Of `score` where something is said about its dimensions."""


def version_for(asking: Mapping[str, Any]) -> str:
    """Return the version that asks what the params of an `Asking` say."""
    signal: Signal = asking["signal"]
    if signal == "action" and asking.get("form") == "rank":
        return RANKED_ACTIONS
    if signal == "score" and isinstance(asking["dimensions"], Mapping):
        return DESCRIBED_SCORES
    return CURRENT[signal]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One version of an instruction."""

    version: str
    """Name and number: `score@1`."""
    text: str
    digest: str
    """sha256 of the text."""


def prompt(version: str) -> Prompt:
    """Return a prompt by its version. ProgramError where there is none."""
    path = FOLDER / f"{version}.md"
    if not path.is_file():
        known = sorted(p.stem for p in FOLDER.glob("*@*.md"))
        raise ProgramError(f"prompt {version!r}: there is none; expected one of {', '.join(known)}")
    text = path.read_text(encoding="utf-8")
    return Prompt(version, text, hashlib.sha256(text.encode()).hexdigest())
