"""Siblings of a case: other problems of its type, new, apart from every evaluation set, and verified solvable.

The environment's generator makes them and its clerk solves them. A solution counts only when its calls, made again in
a fresh world, pass the program's own verifiers: nothing is taken on the clerk's word.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from specs.errors import DataError, TrainingError
from specs.flywheel import Cause, Siblings
from specs.records import Demonstration, Observation, Problem, ToolCall, Trajectory, Turn
from specs.reward import Reward
from tasks.boundary import Failure, boundary
from tasks.episodes.seeds import derive
from tasks.evidence.apart import Hit, Texts, TrainingTexts, normalised, overlap_finder
from tasks.evidence.judge import judge
from tasks.protocols import Environment, VerifierRun

Finder = Callable[[str, str], Hit | None]
SOLVER_TRIES = 8
"""Worlds in which the clerk may try a sibling: declared faults strike anew in each."""
_PLAIN = 25
"""Siblings without a solution from which the share is looked at while siblings are still made."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Worlds and judges of a program."""

    environments: Mapping[str, Environment]
    verifiers: Mapping[str, VerifierRun]
    reward: Reward

    def solves(self, made: Demonstration, seed: int) -> Demonstration | None:
        """Return the demonstration as it went in a fresh world; None where the verifiers do not call it solved."""
        found = boundary(f"{made.problem.environment} replay", lambda: self._replay(made, seed))
        if isinstance(found, Failure):
            return None
        trajectory, again = found
        judge(trajectory, made.problem, self.verifiers, self.reward)
        return again if trajectory.success is True and trajectory.status == "finished" else None

    def passes(self, made: Demonstration) -> bool:
        """Return whether the verifiers call a recorded demonstration solved, as it stands."""
        trajectory = _record(made, made.turns, ended=bool(made.turns) and made.turns[-1][1].done)
        judge(trajectory, made.problem, self.verifiers, self.reward)
        return trajectory.success is True and trajectory.status == "finished"

    def _replay(self, made: Demonstration, seed: int) -> tuple[Trajectory, Demonstration]:
        world = self.environments[made.problem.environment].open(made.problem, seed)
        try:
            turns = [(call, world.call(call)) for call, _ in made.turns]
            state, answer, ended = world.final_state(), world.answer, world.done
        finally:
            world.close()
        again = Demonstration(made.problem, turns, made.by, made.spoiled, state, answer)
        return _record(again, turns, ended=ended), again


def _record(made: Demonstration, turns: list[tuple[ToolCall, Observation]], *, ended: bool) -> Trajectory:
    """Return a demonstration as a trajectory without tokens, for verifiers to judge."""
    problem = made.problem
    return Trajectory(
        id=f"clerk/{problem.id}", problem_id=problem.id, problem_type=problem.type, environment=problem.environment,
        environment_version="", agent=made.by, group=problem.id, sample=0, seed=0, ids=[], sources=[], logprobs=[],
        policy_versions=[], turns=[Turn(0, 0, c.written, c, o) for c, o in turns],
        status="finished" if ended else "turn_limit", sampling={},
        final_state=made.final_state, answer=made.answer, origin="clerk",
    )  # fmt: skip


class Apartness:
    """What a sibling must not be: a record of an evaluation set or the like, a training record, another sibling.

    One that is held back judges, so that it is no near duplicate of what trains either; and what trains is none of it.
    """

    def __init__(self, evaluation: Texts, training: Iterable[tuple[str, str]], threshold: float) -> None:
        known = list(training)
        self._threshold = threshold
        self._hit = overlap_finder(evaluation, threshold)
        self._training = TrainingTexts(known, threshold)
        self._held: list[tuple[str, str]] = []
        self._held_hit: Finder | None = None
        self._ids = {record for record, _ in known}
        self._texts = {normalised(text) for _, text in known}

    def _refusal(self, problem: Problem, *, held: bool) -> str | None:
        if problem.id in self._ids or normalised(problem.text) in self._texts:
            return "known"
        if (hit := self._hit(problem.id, problem.text)) is not None:
            return f"evaluation_{hit.reason}"
        if held:
            hit = self._training.hit(problem.id, problem.text)
            return None if hit is None else f"training_{hit.reason}"
        if self._held_hit is None:
            self._held_hit = overlap_finder({"held": self._held}, self._threshold)
        hit = self._held_hit(problem.id, problem.text)
        return None if hit is None else f"held_back_{hit.reason}"

    def admit(self, problem: Problem, *, held: bool = False) -> str | None:
        """Take a problem in and return None, or return why it is refused; `held` where it is to judge."""
        refusal = self._refusal(problem, held=held)
        if refusal is not None:
            return refusal
        self._ids.add(problem.id)
        self._texts.add(normalised(problem.text))
        self._training.add(problem.id, problem.text)
        if held:
            self._held.append((problem.id, problem.text))
            self._held_hit = None
        return None


@dataclass(slots=True)
class SiblingReport:
    """What became of the siblings that were drawn."""

    made: int = 0
    """Solved and new."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> draws that were not new: `known, evaluation_id, evaluation_text` and so on."""
    unsolved: Counter[str] = field(default_factory=Counter)
    """Environment and type -> siblings that their own environment could not solve."""
    impossible: Counter[str] = field(default_factory=Counter)
    """Reason -> cases of which no sibling can be made."""

    @property
    def unsolved_share(self) -> float:
        """Return the share of new siblings that could not be solved."""
        lost = self.unsolved.total()
        return lost / (lost + self.made) if lost else 0.0


class SiblingMaker:
    """Makes siblings of one program's cases; the same seed makes the same ones."""

    def __init__(self, bench: Bench, apart: Apartness, spec: Siblings, seed: int) -> None:
        self._bench, self._apart, self._spec, self._seed = bench, apart, spec, seed
        self._number: Counter[str] = Counter()
        self.report = SiblingReport()

    def make(self, problem: Problem, cause: Cause, *, held: bool = False) -> Demonstration | None:
        """Return a new sibling of a problem with its verified solution; None where `tries` draws gave none.

        `held` where it is held back to judge, and never trains. TrainingError once it is plain that more than the
        declared share cannot be solved.
        """
        environment = self._bench.environments.get(problem.environment)
        if environment is None:
            self.report.impossible[f"environment {problem.environment!r} is not declared"] += 1
            return None
        for _ in range(self._spec.tries):
            self._number[problem.id] += 1
            seed = derive(self._seed, "sibling", problem.id, self._number[problem.id])
            try:
                sibling = environment.sibling(problem, seed)
            except DataError as e:
                self.report.impossible[str(e)] += 1
                return None
            refusal = self._apart.admit(sibling, held=held)
            if refusal is not None:
                self.report.refused[refusal] += 1
                continue
            solved = self._solve(environment, sibling, seed, cause)
            if solved is not None:
                self.report.made += 1
                return solved
            self.report.unsolved[f"{sibling.environment}/{sibling.type}"] += 1
            if self.report.unsolved.total() >= _PLAIN:
                self.check()
        return None

    def _solve(self, environment: Environment, sibling: Problem, seed: int, cause: Cause) -> Demonstration | None:
        """Return a verified solution, one that shows how the cause is avoided where a few worlds give one."""
        plain: Demonstration | None = None
        for attempt in range(SOLVER_TRIES):
            world = derive(seed, "world", attempt)
            made = boundary(f"{sibling.environment} solve", lambda at=world: environment.demonstrate(sibling, at))
            solved = None if isinstance(made, Failure) else self._bench.solves(made, world)
            if solved is not None and shows(cause, solved):
                return solved
            plain = plain or solved
        return plain

    def check(self) -> None:
        """Raise TrainingError where a larger share than `max_unsolved` of the siblings could not be solved."""
        most = self._spec.max_unsolved
        if self.report.unsolved_share > most:
            worst = ", ".join(f"{n} of {name}" for name, n in self.report.unsolved.most_common(3))
            raise TrainingError(
                f"siblings: {self.report.unsolved.total()} of {self.report.unsolved.total() + self.report.made} could "
                f"not be solved by their own environment ({worst}), more than siblings.max_unsolved ({most:g}) allows. "
                "The generator and the clerk, or the verifiers, disagree; mend them, or raise the limit knowingly"
            )


def shows(cause: Cause, made: Demonstration) -> bool:
    """Return whether a solution shows what a policy with this failure has to learn."""
    if cause != "error_recovery":
        return True
    return any(seen.is_error for _, seen in made.turns[:-1])
