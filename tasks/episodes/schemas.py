"""Arguments of a call against the JSON schema of its tool: the part of JSON Schema that tools use."""

from collections.abc import Callable, Iterable
from typing import Any

from specs.errors import ProgramError
from tasks.protocols import ToolSchema

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
    "any": lambda _: True,
}

_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "properties": (_CHECKS["object"], "an object"),
    "required": (lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v), "a list of names"),
    "enum": (_CHECKS["array"], "a list"),
    "minimum": (_CHECKS["number"], "a number"),
    "maximum": (_CHECKS["number"], "a number"),
}


def check_tools(tools: Iterable[ToolSchema], call_format: str) -> None:
    """Raise ProgramError for a tool that no call could be checked against, or whose arguments hide its name."""
    for tool in tools:
        _check_parts(tool.parameters, f"tool {tool.name}")
        properties = tool.parameters.get("properties", {})
        if call_format == "flat" and "tool" in properties:
            raise ProgramError(
                f"tool {tool.name}: has an argument called 'tool', which a flat call uses for the tool's name; "
                "set agent.call_format to nested"
            )
        for key, schema in properties.items():
            _check_schema(schema, f"tool {tool.name}, argument {key}")


def _check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        raise ProgramError(f"{where}: found {schema!r}, expected a JSON schema object")
    _check_parts(schema, where)
    for kind in _kinds(schema):
        if not isinstance(kind, str) or kind not in _CHECKS:
            raise ProgramError(f"{where}: found type {kind!r}, expected one of {', '.join(_CHECKS)}")
    if "items" in schema:
        _check_schema(schema["items"], f"{where}, items")
    for key, inner in schema.get("properties", {}).items():
        _check_schema(inner, f"{where}.{key}")


def _check_parts(schema: dict[str, Any], where: str) -> None:
    """Raise ProgramError for a part of a schema that is not of its kind."""
    wrong = [
        f"{name}: found {str(schema[name])[:100]}, expected {expected}"
        for name, (fits, expected) in _PARTS.items()
        if name in schema and not fits(schema[name])
    ]
    if wrong:
        raise ProgramError(f"{where}, {wrong[0]}")


def _kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", "any")
    return list(kind) if isinstance(kind, list) else [kind]


def argument_error(arguments: dict[str, Any], parameters: dict[str, Any]) -> str | None:
    """Return `missing_argument`, `unknown_argument` or `wrong_type` (out of range too), or None for arguments that fit.

    Arguments beyond the schema's are allowed only where it says `additionalProperties: true`.
    """
    properties: dict[str, Any] = parameters.get("properties", {})
    if any(key not in arguments for key in parameters.get("required", [])):
        return "missing_argument"
    if parameters.get("additionalProperties") is not True and any(key not in properties for key in arguments):
        return "unknown_argument"
    fits = all(_fits(value, properties[key]) for key, value in arguments.items() if key in properties)
    return None if fits else "wrong_type"


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    if not any(_CHECKS[kind](value) for kind in _kinds(schema)):
        return False
    if "enum" in schema and not any(type(value) is type(v) and value == v for v in schema["enum"]):
        return False
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if isinstance(value, list) and "items" in schema:
        return all(_fits(v, schema["items"]) for v in value)
    if isinstance(value, dict) and "properties" in schema:
        return argument_error(value, {"additionalProperties": True, **schema}) is None
    return True
