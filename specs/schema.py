"""JSON Schema of a program for editors: descriptions come from the docstrings under the fields."""

import ast
import inspect
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

from specs.base import Spec
from specs.program import Program

SCHEMA_FILE = Path(__file__).with_name("schema.json")
Json = dict[str, Any]


def program_schema() -> Json:
    """Return the JSON Schema (draft 2020-12) of a program file."""
    schema = Program.model_json_schema(by_alias=True)
    models = {m.__name__: m for m in _specs(Spec)}
    for name, definition in cast("dict[str, Json]", schema.get("$defs", {})).items():
        if name in models:
            _describe(definition, models[name])
    _describe(schema, Program)
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "A program file whose maps are merged below this one's; one level.",
    }
    schema["required"] = [k for k in schema["required"] if k == "program"]  # the rest may come from the base
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cast(Json, _untitled(schema))}


def schema_text() -> str:
    """Return the schema as it is kept in `specs/schema.json`."""
    return json.dumps(program_schema(), indent=1, ensure_ascii=False) + "\n"


def field_docs(model: type[Spec]) -> dict[str, str]:
    """Return the docstring under each field of a spec, inherited ones included."""
    inherited = [field_docs(base) for base in model.__bases__ if issubclass(base, Spec) and base is not Spec]
    return {name: doc for docs in [*inherited, _own_docs(model)] for name, doc in docs.items()}


def _own_docs(model: type[Spec]) -> dict[str, str]:
    tree = _module(model.__module__)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == model.__name__:
            return _docs(node)
    return {}


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


def _docs(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for field, doc in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str):
            docs[field.target.id] = inspect.cleandoc(doc.value.value)
    return docs


def _specs(model: type[Spec]) -> list[type[Spec]]:
    return [m for sub in model.__subclasses__() for m in (sub, *_specs(sub))]


def _describe(definition: Json, model: type[Spec]) -> None:
    docs = field_docs(model)
    properties = cast("dict[str, Json]", definition.get("properties", {}))
    for name, field in model.model_fields.items():
        shown = properties.get(field.alias or name)
        if shown is not None and name in docs:
            shown["description"] = docs[name]


def _untitled(data: Any) -> Any:
    """Drop the titles that pydantic makes from names: editors would show them instead of descriptions."""
    if isinstance(data, dict):
        items = cast(Json, data).items()
        return {k: _untitled(v) for k, v in items if k != "title" or not isinstance(v, str)}
    if isinstance(data, list):
        return [_untitled(v) for v in cast("list[Any]", data)]
    return data
