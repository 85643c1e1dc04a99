"""What nodes need from outside to reach teachers; looked at before anything runs, and never kept."""

import os
from collections.abc import Iterable, Mapping

from flows.nodes import Node
from specs.errors import ProgramError
from specs.redaction import REFERENCE


def need_secrets(nodes: Iterable[Node], environ: Mapping[str, str] = os.environ) -> None:
    """Raise ProgramError, before anything runs, where a node needs an environment variable that is not set."""
    for node in nodes:
        for name, access in node.params.get("access", {}).get("teachers", {}).items():
            for field, value in access.items():
                found = REFERENCE.finditer(value) if isinstance(value, str) else ()
                missing = [m[1] for m in found if not environ.get(m[1])]
                if missing:
                    raise ProgramError(
                        f"teachers.{name}.{field}: the environment variable {missing[0]} is not set, and node {node.id} "
                        f"needs it; set it (export {missing[0]}=…) and run again"
                    )
