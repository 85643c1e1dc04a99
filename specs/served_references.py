"""Checks of teachers behind a server: how they are reached, and what a stage may want of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from specs.addresses import open_road
from specs.checks import Checks
from specs.positions import KeyPath


def served(c: Checks, path: KeyPath, teacher: Any) -> None:
    """Check how a served model is reached and what is asked of it."""
    if "${" in teacher.model:
        c.wrong((*path, "model"), "found a reference, but the model's name is part of every key; write the name")
    if "${" not in teacher.url:
        if open_road(teacher.url) and not teacher.unencrypted:
            text = (
                f"found {teacher.url!r}, expected http:// on the loopback, or https://; bring the server here by a tunnel, "
                "or write unencrypted: yes where you trust all that lies between"
            )
            c.wrong((*path, "url"), text)
        if "?" in teacher.url or "#" in teacher.url or teacher.url.rstrip("/").endswith("/v1"):
            c.wrong(
                (*path, "url"), "found more than the address; /v1/completions is written behind it, so end before that"
            )
    if teacher.align.score != "canonical":
        text = f"found {teacher.align.score}, which needs whole distributions; a served model gives those of no token"
        c.wrong((*path, "align", "score"), f"{text}; write canonical")


def can_be_compared(c: Checks, path: KeyPath, learner: Any, asked: Iterable[str]) -> None:
    """Report what a stage wants of a served model and cannot have: it gives logprobs of some tokens, at temperature 1."""
    roster: Mapping[str, Any] = {n: t for n in asked if (t := c.program.teachers.get(n)) is not None}
    over = getattr(learner, "over", None)
    for name, teacher in roster.items():
        if teacher.kind != "served_model" or over is None:
            continue
        match over.kind:
            case "full":
                text = (
                    f"found full, but {name} stands behind a server, which gives the logprobs of sampled tokens and of "
                    f"the {teacher.top_k} likeliest; write over: {{kind: sampled}}"
                )
                size = min(32, teacher.top_k)
                c.wrong((*path, "over"), f"{text}, or over: {{kind: top_k, size: {size}, support: teacher}}")
            case "top_k":
                _its_own_list(c, path, learner, name, teacher, alone=len(roster) == 1)
            case _:
                _as_sampled(c, path, name)


def _its_own_list(c: Checks, path: KeyPath, learner: Any, name: str, teacher: Any, *, alone: bool) -> None:
    """Report what cannot be compared with the likeliest tokens that a server lists."""
    over, at = learner.over, (*path, "over")
    if over.size > teacher.top_k:
        text = f"found {over.size}, but the server of {name} lists at most {teacher.top_k} (teachers.{name}.top_k)"
        c.wrong((*at, "size"), f"{text}; ask for fewer, or start it with more (--max-logprobs) and raise top_k")
    if over.support == "policy" or (over.support == "auto" and over.direction != "forward"):
        text = f"means the policy's likeliest tokens, but {name} lists its own and no others"
        c.wrong((*at, "support"), f"found {over.support}, which {text}; write support: teacher")
    if over.loss_temperature != 1.0:
        text = f"found {over.loss_temperature:g}, but {name} gives the probabilities of some tokens at 1"
        c.wrong((*at, "loss_temperature"), f"{text}; leave it out")
    if teacher.tokenizer is not None:
        text = f"needs a teacher with the policy's tokens, but teachers.{name} has a tokenizer of its own"
        c.wrong(at, f"{text}; write over: {{kind: sampled}}, or leave tokenizer out where it is the policy's")
    if teacher.template not in ("policy", c.program.policy.template):
        text = f"needs a teacher with the policy's template, but that of {name} is {teacher.template}"
        c.wrong(at, f"{text}; write over: {{kind: sampled}}, or leave template out")
    if not alone and getattr(learner, "combine", "mixture") != "sum":
        text = f"several teachers make one distribution, but {name} lists other tokens than those beside it"
        c.wrong((*path, "combine"), f"{text}; write combine: sum (of opd or distill), a loss for each")
    if getattr(learner, "by_confidence", False):
        text = f"needs whole distributions, but {name} lists {over.size} tokens"
        c.wrong((*path, "by_confidence"), f"{text}; leave it out")


def _as_sampled(c: Checks, path: KeyPath, name: str) -> None:
    """Report temperatures at which a server scores nothing: its logprobs of a prompt are those at 1."""
    number = path.index("stages") + 1
    flywheel = c.program.flywheel
    stages = c.program.stages if path[0] == "stages" or flywheel is None else flywheel.round.stages
    algorithm: Any = stages[int(path[number])].algorithm
    found: dict[KeyPath, float | None] = {("temperature",): algorithm.temperature}
    if getattr(algorithm, "form", None) == "success_distill":
        found["success_distill", "final_temperature"] = algorithm.success_distill.final_temperature
    for field, value in found.items():
        if value is not None and value != 1.0:
            text = f"found {value:g}, but {name} scores sampled tokens at 1, the only one at which a server can"
            c.wrong((*path[: number + 1], "algorithm", *field), f"{text}; write 1.0")
