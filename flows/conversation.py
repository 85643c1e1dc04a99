"""A trajectory as text that people read: who said what, where each token came from, what the verifiers found."""

import json
from collections import Counter
from typing import Any

from specs.records import Source, Trajectory, Turn
from tasks.tokens.tokenizer import Tokenizer

_WIDTH = 10


def conversation(trajectory: Trajectory, tokenizer: Tokenizer | None = None) -> str:
    """Return a trajectory as a conversation. Without its tokenizer the prompt is shown as a number of tokens."""
    t = trajectory
    lines = [headline(t), *prompt_lines(t, tokenizer)]
    for turn in t.turns:
        lines += turn_lines(t, turn)
    return "\n".join([*lines, *end_lines(t)])


def headline(t: Trajectory) -> str:
    """Return one line: id, type, status, success and reward."""
    success = {True: "success", False: "failure", None: "no verdict"}[t.success]
    reward = "no reward" if t.reward is None else f"reward {t.reward:+.3f}"
    return f"{t.id} · {t.problem_type} · {t.status} · {success} · {reward}"


def prompt_lines(t: Trajectory, tokenizer: Tokenizer | None) -> list[str]:
    """Return what stood before the first turn, by source."""
    end = t.turns[0].start if t.turns else len(t.ids)
    lines: list[str] = []
    at = 0
    while at < end:
        stop = at
        while stop < end and t.sources[stop] == t.sources[at]:
            stop += 1
        source = Source(t.sources[at])
        if source is not Source.TEMPLATE or (tokenizer is not None and stop - at > 8):
            text = f"({stop - at} tokens; name the policy with --policy to read them)"
            if tokenizer is not None:
                text = tokenizer.decode(t.ids[at:stop])
            lines.append(_line(source.name.lower(), text, stop - at))
        at = stop
    return lines


def turn_lines(t: Trajectory, turn: Turn) -> list[str]:
    """Return a completion and the environment's reply."""
    tokens = turn.end - turn.start
    logprob = sum(t.logprobs[turn.start : turn.end])
    about = f"{tokens} tokens" if t.origin != "rollout" else f"{tokens} tokens, logprob {logprob:.2f}, {turn.finish}"
    lines = [f"  {'policy':<{_WIDTH}} {_escaped(turn.text)}   [{about}]"]
    if turn.call is not None and turn.call.error is not None:
        lines.append(f"  {'':<{_WIDTH}} the call was not made: {turn.call.error}")
    observation = turn.observation
    if observation is not None:
        marks = [m for m in ("is_error", "changed", "informed", "injected", "done") if getattr(observation, m)]
        marks += [observation.event] if observation.event else []
        shown = f"   [{', '.join(marks).replace('is_error', 'error')}]" if marks else ""
        lines.append(f"  {'tool':<{_WIDTH}} {json.dumps(observation.data, ensure_ascii=False)}{shown}")
    return lines


def end_lines(t: Trajectory) -> list[str]:
    """Return answer, error, verdicts, reward parts and the count of tokens by source."""
    lines = [f"  {'answer':<{_WIDTH}} {_escaped(t.answer)}"] if t.answer is not None else []
    lines += [f"  {'error':<{_WIDTH}} {t.error}"] if t.error else []
    for v in t.verdicts:
        found = f"invalid: {v.invalid}" if v.invalid is not None else f"{'passed' if v.passed else 'failed'} {v.score}"
        evidence = f"   {json.dumps(v.evidence, ensure_ascii=False)[:300]}" if v.evidence else ""
        lines.append(f"  {'verdict':<{_WIDTH}} {v.verifier}: {found}{evidence}")
    parts = {k: v for k, v in t.reward_parts.items() if v}
    if parts:
        lines.append(f"  {'reward':<{_WIDTH}} " + ", ".join(f"{k} {v:+.3f}" for k, v in parts.items()))
    lines.append(f"  {'tokens':<{_WIDTH}} " + ", ".join(f"{k} {v}" for k, v in source_counts(t).items()))
    versions = ", ".join(f"{name} ({n})" for name, n in t.policy_versions)
    lines += [f"  {'sampled by':<{_WIDTH}} {versions}"] if versions else []
    lines += [f"  {'tags':<{_WIDTH}} {', '.join(t.tags)}"] if t.tags else []
    return lines


def source_counts(t: Trajectory) -> dict[str, int]:
    """Return how many tokens each source wrote."""
    counts = Counter(t.sources)
    return {s.name.lower(): counts[int(s)] for s in Source if counts[int(s)]}


def _line(who: str, text: str, tokens: int) -> str:
    body = _escaped(text).replace("\n", f"\n  {'':<{_WIDTH}} ")
    return f"  {who:<{_WIDTH}} {body}   [{tokens} tokens]"


def _escaped(text: Any) -> str:
    """Return text whose control characters cannot act on a terminal."""
    return "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in str(text))
