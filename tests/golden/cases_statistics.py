"""Cases of metrics, tests and selection."""

from typing import Any

from specs.records import Source, Trajectory
from specs.supervised import RFT
from tasks.loops.selection import select
from tasks.statistics import paired, pass_metrics
from tasks.statistics.intervals import wilson
from tests.tasks.learning.test_rows import trajectory

Json = dict[str, Any]


def _trajectory(problem: str, name: str, reward: float, tokens: int) -> Trajectory:
    made = trajectory([Source.POLICY] * tokens, name=name)
    made.problem_id, made.reward, made.success = problem, reward, reward >= 1.0
    return made


def rft_select(i: Json) -> Json:
    rows = [_trajectory(*row) for row in i["rows"]]
    spec = RFT(type="rft", threshold=i["threshold"], top_k=i["top_k"], band=tuple(i["band"]), distinct=False)
    chosen = select(rows, spec)
    return {"pass_rate": chosen.pass_rates, "selected": chosen.ids}


def pass_case(i: Json) -> Json:
    rows = list(zip(i["c"], i["n"], strict=True))

    def over(metric: Any) -> dict[str, float | None]:
        return {str(k): pass_metrics.over_problems(metric, rows, k).value for k in i["k"]}

    return {
        "pass_at_k": over(pass_metrics.pass_at_k),
        "pass_hat_k": over(pass_metrics.pass_hat_k),
        "positive_task_rate": pass_metrics.positive_problem_rate(rows),
        "expected_samples_to_first_success": [pass_metrics.samples_to_success(n, c) for c, n in rows],
    }


def ci_tests(i: Json) -> Json:
    b, c, n = i["newly_solved_b"], i["newly_broken_c"], i["n_pairs"]
    share = wilson(i["successes"], i["n"])
    se, difference = paired.difference_se(b, c, n), (b - c) / n
    return {
        "wilson": [share.low, share.high],
        "mcnemar_exact_two_sided": paired.mcnemar_exact(b, c),
        "mcnemar_exact_one_sided_regression": paired.mcnemar_exact(b, c, "worse"),
        "mcnemar_mid_p_two_sided": paired.mcnemar_mid_p(b, c),
        "mcnemar_chi2_cc": paired.mcnemar_chi_square(b, c),
        "paired_diff": difference,
        "paired_diff_se": se,
        "paired_diff_ci95": [difference - i["z"] * se, difference + i["z"] * se],
    }


CASES = {"rft_select": rft_select, "pass_metrics": pass_case, "ci_tests": ci_tests}
