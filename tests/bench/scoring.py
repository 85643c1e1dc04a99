"""Seconds of a step of distillation whose teacher is asked while rollouts are sampled, against one that is asked at its end.

A real HTTP server scores rows, 20 ms each and two at once; the sampler takes 60 ms for each eighth of the rollouts, in which
it computes nothing here, as one on a server does. Both ways take turns; the figure is the ratio of the medians.
"""

import copy
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tasks.learning.learner import Learner
from tasks.loops.distill import train_opd
from tasks.loops.token_lessons import Panel
from tests.bench.common import report
from tests.tasks.loops.test_scoring import SAMPLED, Afterwards, Slow, served, stage_of
from tests.tasks.loops.toy import taught_policy
from tests.tasks.teachers.scored import serving

ROUNDS, PROBLEMS, BOUND = 5, 32, 1.3


def main() -> None:
    policy = taught_policy()
    seconds: dict[str, list[float]] = {"meanwhile": [], "afterwards": []}
    with (
        tempfile.TemporaryDirectory(prefix="tutelage-bench-") as folder,
        serving(Path(folder) / "model", policy) as server,
    ):
        server.on_score = lambda number, result: (time.sleep(0.02), result)[1]
        for number in range(ROUNDS + 1):  # the first warms up
            for name, found in seconds.items():
                teacher = served(Path(folder) / f"{name}{number}", server.url, policy, limits={"in_flight": 2})
                student = copy.copy(policy)
                student.model = copy.deepcopy(policy.model)
                panel = Panel([teacher if name == "meanwhile" else Afterwards(teacher)], lambda _: [1.0])
                made, arena, stage = stage_of(student, panel, SAMPLED, steps=1, problems_per_step=PROBLEMS)
                arena = replace(arena, sampler=Slow(arena, server, 0.06), in_flight=2 * PROBLEMS // 8)
                began = time.monotonic()
                train_opd(Learner(student.model, made.optimizer, 1), arena, stage)
                if number:
                    found.append(time.monotonic() - began)
    medians = {name: round(statistics.median(found), 3) for name, found in seconds.items()}
    ratio = medians["afterwards"] / medians["meanwhile"]
    report("scoring", ratio, f">= {BOUND}", holds=ratio >= BOUND, detail=medians | {"rollouts": 2 * PROBLEMS})


if __name__ == "__main__":
    main()
