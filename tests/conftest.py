"""What every test process shares: one thread for tensors, so that processes side by side do not fight for cores."""

import os
from collections import Counter
from typing import Any

from tests.parts import ABSENT

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count the tests that were left out for want of a system part, by part."""
    said = [str(r.longrepr[2]) for r in terminalreporter.stats.get("skipped", []) if isinstance(r.longrepr, tuple)]
    parts = Counter(text.partition(ABSENT)[2] for text in said if ABSENT in text)
    if parts:
        told = ", ".join(f"{part} ({count})" for part, count in sorted(parts.items()))
        terminalreporter.write_line(f"{parts.total()} tests were left out for want of a system part: {told}")
