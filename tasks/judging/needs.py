"""What a stage needs of its preflight. Torch-free: the choice is made in the driver."""

from typing import Any

from specs.stages import Needs


def unmet(needs: Needs, figures: dict[str, Any]) -> list[str]:
    """Return one sentence for each need that the figures do not meet."""
    wanted = {
        "success": needs.success,
        "positive_problem_rate": needs.positive_problem_rate,
        "mixed_group_rate": needs.mixed_group_rate,
    }
    return [
        f"{name} is {figures[name]:.3f}, needs {least:g}" for name, least in wanted.items() if figures[name] < least
    ]
