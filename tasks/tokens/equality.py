"""Whether two tokenizers are the same, decided by what they do with probes and not by the size of their vocabularies."""

from collections.abc import Sequence

from tasks.tokens.bytes import AnyTokenizer

PROBES = (
    "",
    " ",
    "Order 12 red lamps for Ada Brandt, please.",
    '{"tool":"check_stock","product":"red lamp","quantity":12}',
    '{"name": "finish", "arguments": {"answer": "done"}}',
    "  two  spaces\tand\n\nlines\r\n",
    "straße naïve Ωmega Привет 你好 こんにちは",
    "e\u0301 \u00e9 ﬁ ① Å \u212b",
    "🗼👩\u200d👩\u200d👧 \ufeff\u00a0end",
    "0123456789 3.14159 1e-5 0xff",
    "def f(x_1):\n    return x_1 ** 2  # Comment",
    "UPPER lower MiXeD don't we'll",
    "<|endoftext|><|im_start|><|end|></s><s>[INST]",
)


def difference(one: AnyTokenizer, other: AnyTokenizer, texts: Sequence[str] = ()) -> str | None:
    """Return in words the first difference, None where the two are the same for every probe, text and special token."""
    if one.digest == other.digest:
        return None
    if one.specials != other.specials:
        apart = sorted(set(one.specials.items()) ^ set(other.specials.items()))
        return f"the special tokens differ, for example {apart[0][1]!r} as id {apart[0][0]}"
    for text in (*PROBES, *texts):
        a, b = one.ids(text), other.ids(text)
        if a != b:
            return f"{text[:40]!r} is written as {_few(a)} by one and {_few(b)} by the other"
    for token, (a, b) in enumerate(zip(one.table, other.table, strict=False)):
        if a != b:
            return f"id {token} stands for {a!r} in one and {b!r} in the other"
    if one.size != other.size:
        return f"one has {one.size} ids, the other {other.size}"
    return None


def _few(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', …' if len(ids) > 6 else ''}]"
