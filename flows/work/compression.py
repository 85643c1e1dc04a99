"""Body of `compress`: a smaller policy, by pruning or rounding."""

from flows.context import NodeContext, Outcome
from flows.work import inputs
from flows.work.supervised import demonstration_rows
from specs.algorithms import ALGORITHMS
from specs.compression import Prune, Quantize
from specs.errors import DataError, StateError
from tasks.files import write_json
from tasks.learning.compression import compress as make_smaller
from tasks.learning.compression import mean_loss
from tasks.policy.store import LoadedPolicy, load_policy, save_policy

_EXPORT_TOLERANCE = 1e-4
"""Largest difference, in nats, of the calibration loss of what was saved."""


def compress(node: NodeContext) -> Outcome:
    """Make the policy smaller; writes `policy/` and `compression.json`."""
    spec = ALGORITHMS.validate(node.params["algorithm"])
    assert isinstance(spec, Prune | Quantize), f"{type(spec).__name__} does not compress"
    policy = inputs.start_policy(node)
    made = [demonstration_rows(node, name, policy) for name in inputs.filled(node)]
    rows = [row for some, _ in made for row in some]
    if not rows:
        raise DataError(f"{node.id}: its data hold no demonstration that can be measured on; name a set that does")
    rows = rows[:: max(1, len(rows) // spec.calibration)][: spec.calibration]
    done = make_smaller(policy.model, rows, spec, lambda what, share: node.progress(what, share, {}))
    smaller = LoadedPolicy(done.model, policy.tokenizer, policy.template, done.model.config)
    save_policy(smaller, node.out / "policy")
    saved = mean_loss(load_policy(node.out / "policy", device=inputs.device(node)).model, rows)
    if not abs(saved - done.loss) <= _EXPORT_TOLERANCE:
        raise StateError(
            f"{node.out / 'policy'}: the saved policy's loss is {saved:.6f}, the compressed one's {done.loss:.6f}; it was "
            "not handed on. Run the node again"
        )
    write_json(node.out / "compression.json", done.to_json() | {"rows": len(rows)})
    kept = done.parameters / done.parameters_before
    notes = [
        f"{done.parameters} of {done.parameters_before} weights stay ({kept:.0%}), {done.packed_mb:.2f} MB when packed; "
        f"loss on {len(rows)} demonstrations {done.loss_before:.4f} -> {done.loss:.4f}"
    ]
    notes += [f"{n} demonstrations left out: {reason}" for _, r in made for reason, n in sorted(r.dropped.items())]
    if len(rows) < spec.calibration:
        notes.append(f"calibration is {spec.calibration}, but there are only {len(rows)} demonstrations; all were used")
    return Outcome(
        metrics={
            "parameters": float(done.parameters),
            "kept_share": kept,
            "packed_mb": done.packed_mb,
            "loss_before": done.loss_before,
            "loss": done.loss,
        },
        notes=notes,
    )
