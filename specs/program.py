"""The whole program: one file, every section. Cross references are checked in `specs.references`."""

from typing import Annotated, Literal

from pydantic import Field

from specs.agents import Agent, ToolLoop
from specs.base import Name, Seed, SetName, Spec
from specs.data import Apart, DataSource
from specs.environments import Environments
from specs.flywheel import Flywheel
from specs.gates import Evaluation, Gate
from specs.notify import Notify
from specs.policy import Policy
from specs.reward import Reward
from specs.routing import Routing, Teachers
from specs.run import Budget, Run
from specs.schedule import Schedule
from specs.stages import Stage
from specs.verifiers import Verifiers


class Program(Spec):
    """A post-training program. `schedule`, `notify`, `budget` and `run` are the execution half: they never move a key."""

    program: Name
    """Name; also the MLflow experiment and the registered model."""
    about: str = ""
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    seed: Seed = 17
    policy: Policy
    environments: Annotated[Environments, Field(min_length=1)]
    agent: Agent = ToolLoop()
    data: dict[SetName, DataSource] = {}
    apart: Apart = Apart()
    teachers: Teachers = {}
    """Who may be asked."""
    routing: Routing = []
    """Which of them about which problem; all problems go to a single teacher where left out."""
    verifiers: Annotated[Verifiers, Field(min_length=1)]
    reward: Reward = Reward()
    stages: Annotated[list[Stage], Field(min_length=1)]
    evaluation: Evaluation = Evaluation()
    gates: dict[Name, Gate] = {}
    flywheel: Flywheel | None = None
    """Rounds after the main part that learn from its failures."""
    schedule: dict[Name, Schedule] = {}
    """When it runs by itself; `tutelage schedule` tells Prefect."""
    notify: Notify | None = None
    """Who is told what of a run."""
    budget: Budget = Budget()
    run: Run = Run()
    tags: dict[str, str] = {}
    """Free-form labels; they reach MLflow and nothing else."""
