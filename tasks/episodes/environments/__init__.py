"""Environments: the one place where an environment's spec becomes code."""

from typing import assert_never

from specs.environments import BFCL, OrderDesk, ProcessEnvironment
from specs.environments import Environment as EnvironmentSpec
from tasks.protocols import Environment


def environment_for(name: str, spec: EnvironmentSpec) -> Environment:
    """Return the environment that a program calls `name`; ProgramError where it cannot be had."""
    match spec:
        case OrderDesk():
            from tasks.episodes.environments.order_desk.environment import OrderDeskEnvironment

            return OrderDeskEnvironment(name, spec)
        case BFCL():
            from tasks.episodes.environments.bfcl import BFCLEnvironment

            return BFCLEnvironment(name, spec)
        case ProcessEnvironment():
            from tasks.episodes.environments import process

            return process.ProcessEnvironment(name, spec)
        case _:
            assert_never(spec)
