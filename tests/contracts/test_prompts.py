"""The text of a prompt's version never changes: answers are found again by it, and it is part of keys."""

import json
import os
from pathlib import Path

from specs.prompting import CURRENT, FOLDER, prompt

KNOWN = Path(__file__).with_name("prompts.json")


def test_a_version_of_a_prompt_keeps_its_text() -> None:
    found = {p.stem: prompt(p.stem).digest for p in sorted(FOLDER.glob("*@*.md"))}
    if os.environ.get("UPDATE_PROMPTS"):
        KNOWN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    changed = [v for v in known if found.get(v) != known[v]]
    assert not changed, (
        f"{', '.join(changed)} changed: write a new version (name@2) and name it in specs/prompting.py; where no answer "
        "was ever kept under the old text, run this test with UPDATE_PROMPTS=1"
    )
    assert set(found) == set(known), "a new version: run this test with UPDATE_PROMPTS=1"
    assert set(CURRENT.values()) <= set(found)
