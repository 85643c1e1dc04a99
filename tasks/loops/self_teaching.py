"""Self-teaching inside the on-policy loop: whose rollouts a step has, what the self says of them, when it is renewed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from specs.distillation import Distillation, TopTokens
from specs.records import Problem, Trajectory
from specs.self_teaching import SelfTaughtAlgorithm, SuccessDistill
from tasks.episodes.seeds import derive
from tasks.learning.algorithms import success_distill
from tasks.learning.learner import Component, Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.rows import TrainingRow, behind, rows_from
from tasks.learning.self_taught import at_step, temperature_at
from tasks.learning.teaching import Distiller
from tasks.loops.collapse import Guarded, watch
from tasks.loops.collect import Arena, Draw, check_invalid, rollouts
from tasks.loops.contexts import Contexts
from tasks.loops.resampling import StepRollouts, draw_step
from tasks.loops.taught_tokens import action_tokens, call_tokens
from tasks.policy.llama import Llama

PREFIX = "frozen."
_SILENT = float("nan")


@dataclass(slots=True)
class Lesson:
    """What self-teaching adds to a step."""

    spec: SelfTaughtAlgorithm
    """With the coefficients of the step."""
    components: list[Component] = field(default_factory=list[Component])
    figures: dict[str, float] = field(default_factory=dict[str, float])
    dropped: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class _Kept:
    """What a checkpoint keeps beside the frozen weights."""

    version: int = 0
    """Promotions so far."""
    waited: int = 0
    """Steps since the last one was considered."""
    own: list[float] = field(default_factory=list[float])
    """Success of the policy's tries since then, and of the frozen self's."""
    frozen: list[float] = field(default_factory=list[float])


class SelfTeaching:
    """The frozen self of a stage, and what it is shown."""

    def __init__(
        self,
        spec: SelfTaughtAlgorithm,
        frozen: Llama,
        contexts: Contexts,
        load_frozen: Callable[[Llama, int], None],
        *,
        problems: dict[str, Problem] | None = None,
        experience: Sequence[Trajectory] = (),
    ) -> None:
        """`frozen` is a model of its own; `load_frozen` gives it, as that of a version, to the sampler.

        `problems` is filled with those of each step: what `contexts` solves.
        """
        self.spec = spec
        self._problems = {} if problems is None else problems
        self.guarded = Guarded()
        self.kept = _Kept()
        self._model = frozen
        self._contexts = contexts
        self._load = load_frozen
        self._experience = list(experience)

    # --- rollouts

    def draw(
        self,
        arena: Arena,
        draw: Callable[[int], list[Problem]],
        *,
        seed: int,
        step: int,
        stop: Callable[[], bool] | None = None,
    ) -> StepRollouts:
        """Return the step's rollouts: the policy's own, and where successes teach those of the frozen self beside them."""
        problems = draw(self.spec.problems_per_step)
        self._problems.clear()
        self._problems.update({p.id: p for p in problems})
        count = len(problems)
        if self.spec.form == "success_distill":
            count = max(1, round(count * self.spec.success_distill.exploration))
        own = self.spec.model_copy(update={"problems_per_step": count, "temperature": temperature_at(self.spec, step)})
        drawn = draw_step(arena, own, lambda _: problems[:count], seed=seed, step=step, stop=stop)
        drawn.rounds = [self.spec.problems_per_step]
        if count < len(problems):
            self._load(self._model, self.kept.version)
            asked = Draw(self.spec.group_size, self.spec.temperature, derive(seed, "frozen", step), f"frozen{step}")
            drawn.beside = check_invalid(rollouts(arena, problems[count:], asked, stop=stop), arena.reward).trajectories
        return drawn

    # --- teaching

    def teach(
        self, learner: Learner, rows: list[TrainingRow], drawn: StepRollouts, step: int, max_length: int
    ) -> Lesson:
        """Return what the step learns from beside its advantages; rows of the policy's own tries get their teacher."""
        lesson = Lesson(at_step(self.spec, step, self.guarded.strength))
        if self.spec.form != "success_distill":
            self._score(learner, rows, drawn.collected.trajectories, lesson)
            return lesson
        spec = lesson.spec.success_distill
        chosen = verified([*drawn.beside, *self.shared(step)], spec, lesson.dropped)
        made, report = rows_from(chosen, max_length=max_length, source="taught", behaviour=True)
        for reason, n in report.dropped.items():
            lesson.dropped[reason] = lesson.dropped.get(reason, 0) + n
        made = self._masked(learner, made, {t.id: t for t in chosen})
        lesson.figures |= {
            "taught": float(len({r.trajectory for r in made})),
            "frozen_version": float(self.kept.version),
        }
        judged = [bool(t.success) for t in drawn.beside if t.success is not None]
        if judged:
            lesson.figures["frozen_success"] = fmean(judged)
        if made and spec.coef > 0:
            weighed(made, chosen, spec)
            lesson.components.append(self._component(made, chosen, spec))
        return lesson

    def _component(self, rows: list[TrainingRow], chosen: Sequence[Trajectory], spec: SuccessDistill) -> Component:
        """Return the loss on what is taught: its likelihood, or the divergence from the frozen self's distribution."""
        if spec.tokens != "top_k":
            return Component(rows, partial(success_distill.distillation, spec=spec), "token", "taught")
        whole = sum(row.weight * row.trained for row in rows)
        for row in rows:
            row.distill = [row.weight / whole if inside else 0.0 for inside in row.mask]
            row.teacher_weights = [1.0]
        listed = TopTokens(kind="top_k", size=spec.top_k, direction="forward", support="teacher")
        teacher = OpenTeacher("frozen", self._model, device=self._model.embed.weight.device.type)
        distiller = Distiller(Distillation(over=listed), [teacher], {t.id: t for t in chosen}, alone=True)
        return Component(rows, partial(success_distill.divergence, spec=spec), "token", "taught", distiller)

    def _score(
        self, learner: Learner, rows: list[TrainingRow], trajectories: Sequence[Trajectory], lesson: Lesson
    ) -> None:
        """Give rows the logprobs of the frozen self, shown what it may see."""
        found = self._contexts.prefixes(trajectories)
        asked: list[tuple[TrainingRow, TrainingRow]] = []
        too_long = 0
        for row in rows:
            row.teacher_logprobs = [_SILENT] * len(row.ids)
            prefix = found.ids.get(row.trajectory)
            if prefix is None:
                continue
            if len(prefix) + row.length > self._model.config.max_length:
                too_long += 1
                continue
            asked.append((row, behind(prefix, row)))
        scores = learner.logprobs([shown for _, shown in asked], self._model)
        for (row, shown), values in zip(asked, scores, strict=True):
            given = values[len(shown.ids) - len(row.ids) :]
            row.teacher_logprobs = [p if m else _SILENT for p, m in zip(given, row.mask, strict=True)]
        lesson.figures["privileged"] = len(asked) / max(1, len(rows))
        lesson.dropped |= {f"not taught: {reason}": n for reason, n in found.left_out.items()}
        if too_long:
            lesson.dropped["not taught: what is shown and the trajectory are too long together"] = too_long

    def shared(self, step: int) -> list[Trajectory]:
        """Return the part of other policies' verified experience that this step takes, in turn."""
        count = getattr(self.spec, "experience_per_step", 0)
        if not self._experience or not count:
            return []
        at = step * count
        return [self._experience[(at + i) % len(self._experience)] for i in range(min(count, len(self._experience)))]

    def _masked(
        self, learner: Learner, rows: list[TrainingRow], trajectories: dict[str, Trajectory]
    ) -> list[TrainingRow]:
        """Return the rows with only those tokens that are taught; those without any go."""
        spec = self.spec.success_distill
        match spec.tokens:
            case "selected":
                masks = success_distill.least_sure(learner.entropies(rows), [r.mask for r in rows], spec.share)
            case "action" | "tool_call":
                masks = [self._of_calls(row, trajectories[row.trajectory]) for row in rows]
            case "top_k":
                masks = [row.mask for row in rows]
        return [replace(row, mask=mask) for row, mask in zip(rows, masks, strict=True) if any(mask)]

    def _of_calls(self, row: TrainingRow, trajectory: Trajectory) -> list[bool]:
        if self.spec.success_distill.tokens == "action":
            inside = action_tokens(trajectory)
        else:
            inside = call_tokens(trajectory, self._contexts.template.tokenizer)
        of_row = inside[row.start : row.start + len(row.ids)]
        return [m and i for m, i in zip(row.mask, of_row, strict=True)]

    # --- after the update

    def learn(self, learner: Learner, figures: dict[str, float], step: int) -> dict[str, float]:
        """Watch for a collapse and renew the frozen self where it is time; return figures."""
        watch(self.guarded, self.spec.guard, figures, step)
        self.kept.waited += 1
        if self.spec.form != "success_distill":
            if self.kept.waited >= self.spec.privileged.sync_every:
                self._promote(learner)
            return {"self_teaching": self.guarded.strength}
        self.kept.own.append(figures["success"])
        if "frozen_success" in figures:
            self.kept.frozen.append(figures["frozen_success"])
        if self.kept.waited >= self.spec.snapshot.every:
            gain = fmean(self.kept.own) - (fmean(self.kept.frozen) if self.kept.frozen else 0.0)
            if gain >= self.spec.snapshot.min_gain:
                self._promote(learner)
            self.kept = _Kept(self.kept.version)
        return {"self_teaching": self.guarded.strength}

    @torch.no_grad()
    def _promote(self, learner: Learner) -> None:
        own = dict(self._model.named_parameters())
        for name, value in learner.plain().named_parameters():
            own[name].copy_(value)
        self.kept = _Kept(self.kept.version + 1)

    # --- checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the frozen weights and what else the next step depends on."""
        tensors = {f"{PREFIX}{n}": p.detach() for n, p in self._model.named_parameters()}
        kept = {name: getattr(self.kept, name) for name in ("version", "waited", "own", "frozen")}
        return tensors, {"kept": kept, "guarded": self.guarded.to_json()}

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        for name, own in self._model.named_parameters():
            own.copy_(tensors[f"{PREFIX}{name}"])
        self.kept, self.guarded = _Kept(**data["kept"]), Guarded(**data["guarded"])


def verified(found: Sequence[Trajectory], spec: SuccessDistill, dropped: dict[str, int]) -> list[Trajectory]:
    """Return the trajectories that may teach; the others are counted by reason."""
    kept: list[Trajectory] = []
    for t in found:
        if t.success is not True or t.status != "finished":
            reason = "not taught: no verified success"
        elif spec.min_reward is not None and (t.reward is None or t.reward < spec.min_reward):
            reason = "not taught: below min_reward"
        else:
            kept.append(t)
            continue
        dropped[reason] = dropped.get(reason, 0) + 1
    return kept


def weighed(rows: list[TrainingRow], chosen: Sequence[Trajectory], spec: SuccessDistill) -> None:
    """Give each row the weight of its trajectory."""
    weights = success_distill.trajectory_weights(
        [t.reward or 0.0 for t in chosen],
        [t.policy_tokens for t in chosen],
        [t.problem_type for t in chosen],
        spec.shortness,
    )
    by_id = dict(zip((t.id for t in chosen), weights, strict=True))
    for row in rows:
        row.weight = by_id[row.trajectory]
