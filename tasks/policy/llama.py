"""A Llama decoder: the same function as `transformers.LlamaForCausalLM`, q/k/v and gate/up fused.

B rows, T tokens, N asked-for positions, D width, H heads, K key-value heads, G = H/K, E head width, L cached positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tasks.policy.attention import attention
from tasks.policy.config import LlamaConfig
from tasks.policy.norm import rms_norm
from tasks.policy.swiglu import swiglu

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q_BTHE, k_BTKE, v_BTKE) -> BT(HE)."""


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x scaled to unit mean square, times the weight."""
        return rms_norm(x, self.weight, self.eps)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.index = index
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(size, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.o = nn.Linear(config.heads * config.head_dim, size, bias=False)
        self.gate_up = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        self.norm_attention = RMSNorm(size, config.rms_norm_eps)
        self.norm_mlp = RMSNorm(size, config.rms_norm_eps)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, attend: Attend, at_N: Tensor | None = None) -> Tensor:
        """Return the layer's output; `cos` and `sin` broadcast over heads. With `at_N`, only at these of the B*T: ND."""
        rows, length, _ = x_BTD.shape
        rotated = self.heads + self.kv_heads
        z = self.qkv(self.norm_attention(x_BTD)).view(rows, length, rotated + self.kv_heads, self.head_dim)
        qk = z[:, :, :rotated]
        first, second = qk.chunk(2, -1)
        qk = qk * cos.to(z.dtype) + torch.cat((-second, first), -1) * sin.to(z.dtype)
        y = attend(self.index, qk[:, :, : self.heads], qk[:, :, self.heads :], z[:, :, rotated:])
        if at_N is not None:  # what follows attention looks at each position alone
            x_BTD, y = (t.flatten(0, 1)[at_N] for t in (x_BTD, y))
        x = x_BTD + self.o(y)
        return x + self.down(swiglu(self.gate_up(self.norm_mlp(x))))


@dataclass(slots=True)
class KVCache:
    """Keys and values of every layer, addressed by absolute position: two tensors (layers, rows, K, length, E)."""

    keys: Tensor
    values: Tensor

    @property
    def rows(self) -> int:
        """Return how many sequences it holds."""
        return self.keys.shape[1]

    @property
    def length(self) -> int:
        """Return how many positions it has room for."""
        return self.keys.shape[3]

    @staticmethod
    def gather(parts: "Sequence[tuple[KVCache, Tensor, int]]", length: int) -> "KVCache":
        """Return a new cache with room for `length`: of each part the rows asked for (repeats allowed), one after
        another, their first `used` positions copied. The rest is 0, for what is masked must still be finite.
        """
        layers, _, heads, _, width = parts[0][0].keys.shape
        shape = (layers, sum(len(rows) for _, rows, _ in parts), heads, length, width)
        new = KVCache(parts[0][0].keys.new_zeros(shape), parts[0][0].keys.new_zeros(shape))
        start = 0
        for cache, rows, used in parts:
            place = slice(start, start + len(rows))
            new.keys[:, place, :, :used] = cache.keys[:, rows, :, :used]
            new.values[:, place, :, :used] = cache.values[:, rows, :, :used]
            start += len(rows)
        return new

    def swap(self, one: Tensor, other: Tensor, used: int) -> None:
        """Exchange rows pairwise, their first `used` positions."""
        for tensor in (self.keys, self.values):
            kept = tensor[:, one, :, :used]
            tensor[:, one, :, :used] = tensor[:, other, :, :used]
            tensor[:, other, :, :used] = kept


class Llama(nn.Module):
    """The decoder without a head of its own: `hidden` then `head`. No dropout; train and eval mode are the same."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList([Block(config, i) for i in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.checkpointing = False
        """Compute a layer's inside again in the backward pass rather than keep it."""
        self.cos: Tensor
        self.sin: Tensor
        self.reset_rope()

    def reset_rope(self) -> None:
        """Compute the table of rotations anew, in fp32."""
        c, device = self.config, torch.device("cpu")
        exponents = torch.arange(0, c.head_dim, 2, dtype=torch.int64, device=device).float() / c.head_dim
        positions = torch.arange(c.max_length, device=device).float()
        angles = torch.outer(positions, 1.0 / (c.rope_theta**exponents)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @property
    def head_weight(self) -> Tensor:
        """Return the (vocabulary, width) weight that turns hidden states into logits."""
        return self.embed.weight if self.config.tied else self.lm_head.weight

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (…, vocabulary) of hidden states (…, width)."""
        return functional.linear(hidden, self.head_weight)

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        mask: Tensor | None = None,
        at_N: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states BTD; with `at_N`, only those at these indices into B*T, as ND.

        The last layer then computes nothing else. `mask` is True where the token of axis -2 may see the one of axis -1: BTT; None is causal. Positions count
        from 0 where they are left out. Right padding needs no mask: nothing before it sees it.
        """
        length = ids_BT.shape[1]
        if positions_BT is None:
            assert length <= self.config.max_length, f"{length} tokens, but only {self.config.max_length} positions"
            cos, sin = self.cos[None, :length, None], self.sin[None, :length, None]
        else:
            cos, sin = self.cos[positions_BT][:, :, None], self.sin[positions_BT][:, :, None]
        seen = None if mask is None else mask[:, None] if mask.dim() == 3 else mask
        return self._run(ids_BT, cos, sin, lambda _, q, k, v: _attend(q, k, v, seen), at_N)

    def _run(self, ids_BT: Tensor, cos: Tensor, sin: Tensor, attend: Attend, at_N: Tensor | None) -> Tensor:
        x = self.embed(ids_BT)
        again = self.checkpointing and torch.is_grad_enabled()
        for i, block in enumerate(self.blocks):
            at = at_N if i == len(self.blocks) - 1 else None
            if again:  # no layer draws a random number, so no generator's state is kept
                x = checkpoint(block, x, cos, sin, attend, at, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, cos, sin, attend, at)
        return self.norm(x)

    def new_cache(self, rows: int, length: int) -> KVCache:
        """Return an empty cache with room for `length` positions of `rows` sequences."""
        c = self.config
        shape = (c.layers, rows, c.kv_heads, length, c.head_dim)
        like = self.embed.weight
        return KVCache(like.new_zeros(shape), like.new_zeros(shape))

    def step(
        self, ids_BT: Tensor, positions_BT: Tensor, cache: KVCache, length: int, at_N: Tensor | None = None
    ) -> Tensor:
        """Continue the first B rows of a cache and return hidden states BTD; with `at_N` as `hidden` does.

        Token t of a row goes to its absolute position and sees every position up to it. `length` is one more than
        the highest position. Rows are padded on the right: what padding writes lies beyond the row's end, is never
        seen from before, and is overwritten when the row gets there.
        """
        rows, new = ids_BT.shape
        cos, sin = self.cos[positions_BT][:, :, None], self.sin[positions_BT][:, :, None]
        row = torch.arange(rows, device=ids_BT.device)[:, None]
        first = new == length
        group = self.config.heads // self.config.kv_heads
        seen = None if first else _seen(positions_BT, length, group)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.keys[layer, :rows], cache.values[layer, :rows]
            keys[row, :, positions_BT] = k
            values[row, :, positions_BT] = v
            if seen is None:
                return _attend(q, k, v, None)
            return _attend_cached(q, keys[:, :, :length], values[:, :, :length], seen)

        return self._run(ids_BT, cos, sin, attend, at_N)


def _seen(positions_BT: Tensor, length: int, group: int) -> Tensor:
    """Return what each query sees, B1(TG)L."""
    seen = torch.arange(length, device=positions_BT.device) <= positions_BT[:, :, None]
    return seen.repeat_interleave(group, 1)[:, None]


def _attend(q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, seen: Tensor | None) -> Tensor:
    rows, length, _, _ = q_BTHE.shape
    y = attention(q_BTHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), seen)
    return y.transpose(1, 2).reshape(rows, length, -1)


def _attend_cached(q_BTHE: Tensor, keys_BKLE: Tensor, values_BKLE: Tensor, seen: Tensor) -> Tensor:
    """Attend with the query heads of a group as further queries of their key-value head: no key is copied."""
    rows, length, heads, width = q_BTHE.shape
    kv_heads = keys_BKLE.shape[1]
    group = heads // kv_heads
    q = q_BTHE.view(rows, length, kv_heads, group, width).transpose(1, 2).reshape(rows, kv_heads, length * group, width)
    if q.dtype == torch.float32:
        scores = (q @ keys_BKLE.transpose(-1, -2)).mul_(width**-0.5).masked_fill_(~seen, -1e9)
        y = scores.softmax(-1) @ values_BKLE
    else:
        y = functional.scaled_dot_product_attention(q, keys_BKLE, values_BKLE, attn_mask=seen)
    return y.view(rows, kv_heads, length, group, width).transpose(1, 2).reshape(rows, length, heads * width)
