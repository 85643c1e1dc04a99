"""Whether what a plan expects teachers to cost passes what may be spent on them. Pure."""

from collections.abc import Iterable

from flows.nodes import Json, Node, Plan


def cap_warnings(plan: Plan, nodes: Iterable[Node]) -> list[str]:
    """Return a sentence for each cap that the nodes that would run may reach; what earlier runs spent is not known here."""
    asked = [n for n in nodes if n.kind == "teach"]
    found: list[str] = []
    by_teacher: dict[str, tuple[float, float, Json]] = {}
    for node in asked:
        for name, (calls, usd) in node.estimate.by_teacher.items():
            before = by_teacher.get(name, (0.0, 0.0, {}))
            by_teacher[name] = (before[0] + calls, before[1] + usd, node.params["access"]["teachers"][name])
    for name, (calls, usd, access) in by_teacher.items():
        if access["cap_calls"] is not None and calls > access["cap_calls"]:
            found.append(
                f"teachers.{name}.cap_calls is {access['cap_calls']}, the plan expects up to {calls:,.0f} calls: the run "
                "would stop there with exit code 8"
            )
        if access["cap_usd"] is not None and usd > access["cap_usd"]:
            found.append(
                f"teachers.{name}.cap_usd is {access['cap_usd']:g}, the plan expects up to ${usd:,.2f}: the run would stop "
                "there with exit code 8"
            )
    total, most = sum(n.estimate.teacher_usd for n in asked), plan.budget.get("teacher_usd")
    if most is not None and total > most:
        found.append(
            f"budget.teacher_usd is {most:g}, the plan expects up to ${total:,.2f}: the run would stop there with exit code 8"
        )
    return found
