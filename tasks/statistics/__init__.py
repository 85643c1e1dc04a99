"""Intervals, paired tests, power, looks and pass metrics: pure Python, also used by the planner."""

# ruff: noqa: A005 - its full name is tasks.statistics; nothing imports it by the short one
