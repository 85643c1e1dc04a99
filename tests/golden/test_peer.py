"""Values and gradients of losses are those of the peer, as peer.json has them and as the peer itself says where it is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.peer import LOSSES, ON_POLICY, PEER, answers, drawn, golden, own

CASES = {c["name"]: c for c in golden()["cases"]}


def agree(found: tuple[float, Any], peer: dict[str, Any], *, values: bool) -> None:
    if values:
        assert found[0] == pytest.approx(peer["loss"], rel=1e-6, abs=1e-9)
    gradients = [torch.tensor(g, dtype=torch.float64) for g in (found[1], peer["gradient"])]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_every_loss_has_its_numbers() -> None:
    assert list(CASES) == list(LOSSES)
    assert all(any(any(row) for row in c["gradient"]) for c in CASES.values())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_peers(name: str) -> None:
    agree(own(name, CASES[name]["given"]), CASES[name], values=name not in ON_POLICY)


@pytest.mark.slow
@pytest.mark.skipif(not (PEER / "ready").is_file(), reason="the peer is not installed: make trl")
def test_the_file_is_what_the_peer_says(tmp_path: Path) -> None:
    """Asked for the inputs of the file, and for others drawn anew."""
    others = {f"{n}, anew": drawn(n) | {"advantages": [1.0, -0.5, 0.25, -2.0]} for n in LOSSES}
    given = {n: c["given"] for n, c in CASES.items()} | others
    said = answers([{"name": n, **g, **LOSSES[n.partition(",")[0]][2]} for n, g in given.items()], tmp_path)["found"]
    for name, case in CASES.items():
        agree((said[name]["loss"], said[name]["gradient"]), case, values=True)
    for name in LOSSES:
        again = f"{name}, anew"
        agree(own(name, others[again]), said[again], values=name not in ON_POLICY)
