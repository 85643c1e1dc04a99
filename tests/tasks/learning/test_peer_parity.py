"""Supervised steps of the learner against the peer's trainer, where the peer is installed (`make trl`).

Single losses are compared in tests/golden/test_peer.py.
"""

from pathlib import Path

import pytest

from tests.bench.peer import OWN, saved, side
from tests.bench.peer import PEER as PEER_SIDE
from tests.golden.peer import PEER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PEER / "ready").is_file(), reason="the peer is not installed: make trl"),
]
WORDS = [[f"{a} of the {b} and {a}" * 2 for b in ("rest", "more", "last", "best")] for a in ("one", "two", "ten")]


def test_supervised_steps_are_the_peers(tmp_path: Path) -> None:
    """The losses of three steps: each after the first also tells of the gradients and updates before it."""
    policy = saved("tiny", tmp_path)
    rows = [
        [[policy.tokenizer.encode(w)[:9], policy.tokenizer.encode(w)[: 5 + i]] for i, w in enumerate(step)]
        for step in WORDS
    ]
    setting = {
        "what": "sft", "folder": str(tmp_path), "threads": 1, "precision": "fp32", "warm": 0, "learning_rate": 1e-3,
        "micro_batch_tokens": 64, "end": policy.tokenizer.decode([policy.template.stop_ids[0]]), "steps": rows,
    }  # fmt: skip
    mine, theirs = side(OWN, setting), side(PEER_SIDE, setting)
    assert mine["found"] == pytest.approx(theirs["found"], rel=1e-4)
    assert mine["found"][2] != pytest.approx(mine["found"][0], rel=1e-3)
