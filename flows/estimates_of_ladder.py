"""What stages take that learn from a teacher's words. Pure arithmetic; the worst case where it depends on the answers."""

from collections.abc import Mapping
from typing import Any

from flows.estimates import PROCESS_GB, Estimate, Sizes, collect, weighted


def rollouts(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts that a teacher is asked about."""
    return collect({**params, "algorithm": params["draws"]}, sizes)


def lessons(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate what is made of corrections or orders: worlds are opened again for each correction, also for those not kept."""
    known, draws = sizes.count(params["data"]), params["draws"]
    count = min(draws["problems"] or known, known) * draws["samples"]
    rule = ({params["signal"]: params["rule"]} | params.get("beside", {})).get("sample", {})
    tried, parts = count * rule.get("samples", 1), {"process": PROCESS_GB}
    kept = tried if rule.get("keep") == "all" else count
    return Estimate(memory_gb=PROCESS_GB, disk_mb=kept * 1.5e-3, seconds=2.0 + tried / 800, memory_parts=parts)


def corrected(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on corrections, if every problem has one, or all that are asked for of one failure."""
    rule = params["rule"]
    return _fit(params, sizes, rule["samples"] if rule.get("keep") == "all" else 1)


def listwise(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on lists, or a policy gradient on a round's rollouts, if none is left out and each is corrected."""
    rules = [params["rule"], *params.get("beside", {}).values()]
    corrected = any(rule.get("correction_coef") for rule in rules)
    return _fit(params, sizes, params["draws"]["samples"] * (1 + corrected))


def _fit(params: Mapping[str, Any], sizes: Sizes, samples: int) -> Estimate:
    fit = params["algorithm"]
    like = {
        "problems": params["draws"]["problems"],
        "samples": samples,
        "batch": {"tokens": None, "rows": fit["per_step"] * samples},
    }
    return weighted({**params, "algorithm": {**fit, **like}}, sizes)
