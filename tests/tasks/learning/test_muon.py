import pytest
import torch

from tasks.learning.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24), (24, 30)])
def test_singular_values_are_near_one_and_vectors_are_kept(shape):
    torch.manual_seed(0)
    matrices = torch.randn(3, *shape) * torch.tensor([1e-3, 1.0, 50.0])[:, None, None]
    made = orthogonalised(matrices)
    for before, after in zip(matrices, made, strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        inner = u.T @ after @ v.T
        values = inner.diagonal()[s > 0.05 * s.max()]
        assert values.min() > 0.5
        assert values.max() < 1.3
        torch.testing.assert_close(inner, torch.diag(inner.diagonal()), atol=2e-3, rtol=0)


def test_both_ways_agree():
    from tasks.learning import muon

    torch.manual_seed(0)
    x = torch.randn(2, 16, 64)
    x = x / x.flatten(1).norm(dim=1)[:, None, None]
    torch.testing.assert_close(muon._by_gram(x), muon._directly(x), atol=1e-4, rtol=1e-3)


def test_it_steps_like_torchs_own():
    torch.manual_seed(0)
    start = [torch.randn(16, 16), torch.randn(16, 48), torch.randn(48, 16), torch.randn(16, 16)]
    ours = [torch.nn.Parameter(p.clone()) for p in start]
    theirs = [torch.nn.Parameter(p.clone()) for p in start]
    one = Muon(ours, lr=0.02, weight_decay=0.1)
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        one.step()
        other.step()
    for p, q, before in zip(ours, theirs, start, strict=True):
        moved = (q - before).norm()
        assert (p - q).norm() < 0.03 * moved  # its iteration is in bf16
