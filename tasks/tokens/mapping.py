"""Placing a teacher's tokens in a text that its tokenizer changed without saying where: the least that must be edited."""

from difflib import SequenceMatcher

import numpy as np

from tasks.tokens.bytes import Ends

LONGEST = 8192
"""Bytes of the longest text that is mapped: the work may grow with its square."""


def mapped_ends(text: bytes, text_ends: Ends, written: bytes, written_ends: Ends) -> Ends | None:
    """Return where the ends of tokens in `written` lie in `text`; None where either is empty or too long.

    Bytes that both have in the same order are matched, capitals and small letters alike. A token that ends in a changed
    part ends where the token before it did, so that the part stays one piece. Where bytes of `text` have no
    counterpart between two matches, the end is taken that one of `text_ends` shares.
    """
    if not text or not written or max(len(text), len(written)) > LONGEST:
        return None
    matcher = SequenceMatcher(None, text.lower(), written.lower(), autojunk=False)
    before = np.full(len(written) + 1, -1, dtype=np.int64)
    behind = before.copy()
    for i, j, size in matcher.get_matching_blocks():
        behind[j] = i
        before[j + 1 : j + size + 1] = np.arange(i + 1, i + size + 1)
        behind[j + 1 : j + size] = before[j + 1 : j + size]
    behind[len(written)] = before[len(written)] = len(text)
    ends = np.where(np.isin(before, text_ends) | (behind < 0), before, behind)[written_ends]
    return np.maximum.accumulate(np.maximum(ends, 0))
