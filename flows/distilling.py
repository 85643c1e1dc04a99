"""What a stage needs of teachers whose probabilities are read: their weights as inputs, who they are as params. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from flows.estimates import Shape, shape_of
from flows.graph import Graph, Part, dump
from flows.nodes import Json
from flows.teaching import ACCESS
from specs.distillation import TopTokens
from specs.errors import ProgramError
from specs.policy import PolicyInit, PretrainedPolicy, ScratchPolicy
from specs.served_teacher import ServedModelTeacher
from specs.stages import Stage
from specs.teacher_choice import acting_name, learners, named
from specs.teachers import EarlierSelf, MeasuredTeacher, ModelTeacher, PrivilegedTeacher
from specs.trained_teacher import TrainedTeacher

_MEASURED = tuple(MeasuredTeacher.model_fields)
"""Fields of a teacher that say how its own success is measured."""
_WEIGHTS = ("model", "revision", "tokenizer", "init", "algorithm", "data", "template", "max_length")
"""Fields of a teacher that say where its weights come from: a reader has them as an input."""


def add_opd(graph: Graph, stage: Stage, policy: str) -> str:
    """Add a stage of on-policy distillation."""
    part = graph.part
    params, inputs = open_teachers(graph, stage, stage.algorithm, policy)
    judged = graph.judged(stage)
    params = {
        **judged,
        **params,
        "versions": judged["versions"] | params["versions"],
        "algorithm": dump(stage.algorithm),
    }
    inputs = graph.stage_inputs(stage, policy, apart=part.apart, **inputs)
    return graph.add(part.name(stage.id), "train.opd", params, inputs, passthrough="policy" if part.number else None)


def open_teachers(graph: Graph, stage: Stage, learner: Any, policy: str) -> tuple[Json, dict[str, str]]:
    """Return params and inputs of the teachers of an algorithm or of a term beside one; their weights come as folders.

    `policy` is the node that the stage starts from.
    """
    program = graph.program
    names = named(program, learner)
    routes = [dump(r) for r in program.routing] if learner.teachers is None and program.routing else []
    whole = {"when": None, "teachers": dict(names), "reject": False, "history": None}
    inputs: dict[str, str] = {}
    who: Json = {}
    access: Json = {}
    for name in names:
        spec: Any = program.teachers[name]
        told = {k: v for k, v in dump(spec).items() if k not in (*ACCESS, *_MEASURED, "gives")}
        who[name] = {k: v for k, v in told.items() if k not in _WEIGHTS}
        match spec:
            case ModelTeacher():
                inputs[f"teacher.{name}"] = _model(graph, name, spec, told)
                who[name] |= {"shape": graph.resolution.teachers[name]["shape"]}
            case ServedModelTeacher():
                inputs[f"teacher.{name}"] = _served(graph, name, spec)
                access[name] = _access(spec)
            case TrainedTeacher():
                inputs[f"teacher.{name}"] = _trained(graph, name, spec)
                who[name] |= {"shape": asdict(_shape(graph, name, spec))}
            case EarlierSelf() | PrivilegedTeacher():
                inputs[f"teacher.{name}"] = _frozen(graph, stage, name, spec.of, policy)
            case _:
                raise ProgramError(f"teachers.{name}: of kind {spec.kind}, whose probabilities cannot be read")
    versions = {f"teachers.{n}": f"{program.teachers[n].kind}@{program.teachers[n].version}" for n in names}
    params: Json = {"teachers": who, "routing": routes or [whole], "versions": versions}
    return params | ({"access": {"program": program.program, "teachers": access}} if access else {}), inputs


def _model(graph: Graph, name: str, spec: ModelTeacher, who: Json) -> str:
    """Add the node that reads a checkpoint, once for the whole program."""
    node_id = f"teacher.{name}"
    if node_id not in graph.nodes:
        found = graph.resolution.teachers[name]
        params = {
            "teacher": who,
            "template": graph.policy["template"],
            "digest": found["digest"],
            "path": found["path"],
        }
        graph.add(node_id, "teacher.model", params | {"shape": found["shape"]}, {})
        _measure_model(graph, name, spec)
    return node_id


def _measure_model(graph: Graph, name: str, spec: ModelTeacher) -> None:
    """Add a checkpoint as a policy that acts, and its evaluations, where the program asks for them."""
    if not spec.evaluate:
        return
    found = graph.resolution.teachers[name]
    init = PretrainedPolicy(kind="pretrained", model=spec.model, revision=spec.revision, max_length=spec.max_length)
    policy = _policy(graph, init, spec.template)
    params = _acting(graph, policy, spec.evaluate) | {k: found[k] for k in ("digest", "path")}
    sizes, part = graph.sizes, graph.part
    graph.sizes, graph.part = replace(sizes, shape=shape_of(dump(init), found), pretrained=True), Part()
    _measure(graph, name, spec, graph.add(f"teacher.{name}.policy", "policy.init", params, {}), policy)
    graph.sizes, graph.part = sizes, part


def _measure(graph: Graph, name: str, spec: MeasuredTeacher, node: str, policy: Json) -> None:
    """Add the evaluations of a teacher that acts, whose policy folder `node` makes, where the program asks for them."""
    if spec.evaluate:
        agent = graph.agent | ({} if spec.max_new_tokens is None else {"max_new_tokens": spec.max_new_tokens})
        graph.policies[acting_name(name)] = node
        graph.evaluate(acting_name(name), spec.evaluate, {"policy": policy, "agent": agent})


def _policy(graph: Graph, init: PolicyInit, template: str) -> Json:
    """Return the params of a policy that is a teacher."""
    own = graph.policy["template"] if template == "policy" else template
    return {**graph.policy, "init": dump(init), "template": own, "adapter": None}


def _acting(graph: Graph, policy: Json, data: Iterable[str]) -> Json:
    """Return the params of a node that renders calls of these data sets as a policy of its own."""
    environments = graph.environments(data)
    return {
        "policy": policy,
        "environments": environments,
        "versions": graph.versions(environments),
        "agent": graph.agent,
    }


def _served(graph: Graph, name: str, spec: ServedModelTeacher) -> str:
    """Add the node that looks at a server, once for the whole program."""
    node_id = f"teacher.{name}"
    if node_id in graph.nodes:
        return node_id
    who = {"kind": spec.kind} | {k: v for k, v in dump(spec).items() if k in _WEIGHTS and k != "tokenizer"}
    params: Json = {
        "teacher": who,
        "template": graph.policy["template"],
        "list": _longest_list(graph, name),
        "access": {"program": graph.program.program, "teachers": {name: _access(spec)}},
    }
    inputs: dict[str, str] = {}
    if spec.tokenizer is None:
        inputs["policy"] = graph.policies["init"]
    else:
        found = graph.resolution.teachers[name]
        params |= {"digest": found["digest"], "path": found["path"]}
    return graph.add(node_id, "teacher.served", params, inputs)


def _access(spec: ServedModelTeacher) -> Json:
    return {k: v for k, v in dump(spec).items() if k in ACCESS}


def _longest_list(graph: Graph, name: str) -> int:
    """Return how many likeliest tokens the program's stages ask a server for at most; 0 where none does."""
    asked = [x for _, x in learners(graph.program) if name in named(graph.program, x)]
    return max((x.over.size for x in asked if isinstance(getattr(x, "over", None), TopTokens)), default=0)


def _trained(graph: Graph, name: str, spec: TrainedTeacher) -> str:
    """Add the nodes that make a teacher's first weights and train them, once for the whole program."""
    node_id = f"teacher.{name}"
    if node_id in graph.nodes:
        return node_id
    policy = _policy(graph, spec.init, spec.template)
    params = _acting(graph, policy, spec.data)
    first = dict(params)
    texts: dict[str, str] = {}
    if isinstance(spec.init, ScratchPolicy):
        texts["texts"] = f"data.{spec.init.tokenizer.train_on}"
    else:
        found = graph.resolution.teachers[name]
        first |= {k: found[k] for k in ("digest", "path", "adapter") if k in found}
    weights = dict.fromkeys(spec.data) if isinstance(spec.data, list) else dict(spec.data)
    params |= {"data": weights, "algorithm": dump(spec.algorithm)}
    sizes, part = graph.sizes, graph.part
    pretrained = not isinstance(spec.init, ScratchPolicy)
    graph.sizes, graph.part = replace(sizes, shape=_shape(graph, name, spec), pretrained=pretrained), Part()
    made = graph.add(f"{node_id}.init", "policy.init", first, texts)
    inputs = {"policy": made, **{f"data.{n}": f"data.{n}" for n in spec.data}, "apart": graph.part.apart}
    graph.add(node_id, "train.sft", params, inputs)
    _measure(graph, name, spec, node_id, policy)
    graph.sizes, graph.part = sizes, part
    return node_id


def _shape(graph: Graph, name: str, spec: TrainedTeacher) -> Shape:
    return shape_of(dump(spec.init), graph.resolution.teachers.get(name))


def _frozen(graph: Graph, stage: Stage, name: str, of: str, policy: str) -> str:
    """Return the node whose policy a teacher is. ProgramError where there is none before the stage."""
    if of == "start":
        return policy
    if of in ("champion", "previous"):
        if not graph.registered(of):
            raise ProgramError(
                f"{graph.program.program}: teachers.{name}.of is {of}, but nothing was promoted yet; name a stage, or init"
            )
        return graph.policies[of]
    node = graph.policies.get(graph.part.name(of)) or graph.policies.get(of)
    if node is None:
        raise ProgramError(
            f"{graph.program.program}: stage {stage.id}: teachers.{name}.of is {of!r}, which does not come before it; "
            f"expected one of {', '.join(graph.policies)}"
        )
    return node
