"""Whether teachers whose distributions are compared have the policy's tokens, where both tokenizers are known before a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specs.errors import ProgramError
from specs.program import Program
from specs.teacher_references import choice, learners, named

Json = dict[str, Any]


def check_tokens(
    program: Program,
    policy: Mapping[str, Any] | None,
    teachers: Mapping[str, Json],
    open_path: Callable[[str], Path],
    where: Callable[[str], str],
) -> None:
    """Raise ProgramError (at `where`) for a teacher that cuts probes into other tokens than the policy, asked for distributions.

    `policy` and `teachers` are what was found of pretrained weights; the tokenizers of others are made in a run, and looked at
    there.
    """
    for path, learner in learners(program):
        over = getattr(learner, "over", None)
        if policy is None or over is None or over.kind == "sampled" or choice(program, learner).signal != "logprobs":
            continue
        for name in named(program, learner):
            found = teachers.get(name)
            if found is None or found["digest"] == policy["digest"]:
                continue
            apart = _difference(open_path(policy["path"]), open_path(found["path"]))
            if apart is not None:
                place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
                raise ProgramError(
                    f"{where(f'teachers.{name}')}: its tokens are not the policy's ({apart}), so that their distributions "
                    f"cannot be compared ({place}.over: {{kind: {over.kind}}}); write over: {{kind: sampled}}, which compares "
                    "texts, or name a teacher with the policy's tokenizer"
                )


def _difference(policy: Path, teacher: Path) -> str | None:
    """Return in words how two tokenizers differ; None where they do not, or one is missing, which the node tells that reads it."""
    from tasks.policy.gguf_tokenizer import read_tokenizer
    from tasks.tokens.bytes import AnyTokenizer
    from tasks.tokens.equality import difference

    found: list[AnyTokenizer] = []
    for path in (policy, teacher):
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            return None
        gguf = file.suffix == ".gguf"
        found.append(
            AnyTokenizer.from_json(read_tokenizer(file).to_json(), str(file)) if gguf else AnyTokenizer.load(file)
        )
    return difference(found[0], found[1])
