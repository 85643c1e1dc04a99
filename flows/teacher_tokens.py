"""Whether teachers whose distributions are compared have the policy's tokens, where both tokenizers are known before a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specs.errors import ProgramError
from specs.program import Program
from specs.teacher_choice import choice, learners, named

Json = dict[str, Any]


def with_tokens(
    program: Program,
    policy: Mapping[str, Any] | None,
    teachers: Mapping[str, Json],
    known: Mapping[str, Json],
    open_path: Callable[[str], Path],
    where: Callable[[str], str],
) -> dict[str, Json]:
    """Return what was found of pretrained teachers; `tokens_of` is the digest of the policy whose tokens one was found to have.

    ProgramError (at `where`) for one that cuts probes into other tokens than the policy and is asked for distributions. What
    `known`, the last run's, tells of the same two is not looked at again. Tokenizers that are made in a run are looked at there.
    """
    found = dict(teachers)
    for path, learner in learners(program):
        over = getattr(learner, "over", None)
        if policy is None or over is None or over.kind == "sampled" or choice(program, learner).signal != "logprobs":
            continue
        for name in (n for n in named(program, learner) if n in found):
            before, own = known.get(name, {}), found[name]
            same = (before.get("digest"), before.get("tokens_of")) == (own["digest"], policy["digest"])
            if not same:
                files = _file(open_path(policy["path"])), _file(open_path(own["path"]))
                if not all(file.is_file() for file in files):
                    continue  # the node that reads it tells
                if (apart := _difference(*files)) is not None:
                    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
                    raise ProgramError(
                        f"{where(f'teachers.{name}')}: its tokens are not the policy's ({apart}), so that their "
                        f"distributions cannot be compared ({place}.over: {{kind: {over.kind}}}); write over: "
                        "{kind: sampled}, which compares texts, or name a teacher with the policy's tokenizer"
                    )
            found[name] = own | {"tokens_of": policy["digest"]}
    return found


def _file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def _difference(policy: Path, teacher: Path) -> str | None:
    """Return in words how the tokenizers in two files differ; None where they do not."""
    from tasks.policy.gguf_tokenizer import read_tokenizer
    from tasks.tokens.bytes import AnyTokenizer
    from tasks.tokens.equality import difference

    found = [
        AnyTokenizer.from_json(read_tokenizer(file).to_json(), str(file))
        if file.suffix == ".gguf"
        else AnyTokenizer.load(file)
        for file in (policy, teacher)
    ]
    return difference(found[0], found[1])
