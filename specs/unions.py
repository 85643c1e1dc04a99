"""Specs that are imported when a program uses them: a check reads what it needs and no more."""

from importlib import import_module
from typing import Any, Union, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from specs.base import Spec


class Imported:
    """One spec, named `module:Class`; stands in `Annotated[Any, …]`."""

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def union(self) -> type[Spec]:
        """Return the spec; imports it."""
        return _imported(self.place)

    def validate(self, value: object) -> Spec:
        """Return the spec that plain data stand for; a spec stays as it is."""
        try:
            return self.union.model_validate(value)
        except ValidationError as e:
            raise ValidationError.from_exception_data(e.title, [_again(d) for d in e.errors()]) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core_schema.union_schema([cast(Any, TypeAdapter(self.union).core_schema)]))


class Members:
    """The members of a union by the value of their tag, each named `module:Class`; stands in `Annotated[Any, …]`."""

    def __init__(self, tag: str, table: dict[str, str]) -> None:
        self.tag = tag
        self.table = table

    def __getitem__(self, name: str) -> type[Spec]:
        """Return the member with this tag."""
        return _imported(self.table[name])

    @property
    def union(self) -> Any:
        """Return the union of all members; imports them."""
        return Union[tuple(self[n] for n in self.table)]  # noqa: UP007

    def validate(self, value: object) -> Spec:
        """Return the member that plain data stand for; a member stays as it is."""
        if isinstance(value, Spec) and getattr(value, self.tag, None) in self.table:
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        data = cast(dict[str, Any], value)
        if self.tag not in data:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": repr(self.tag)})
        name = data[self.tag]
        if not isinstance(name, str) or name not in self.table:
            known = ", ".join(map(repr, self.table))
            context = {"discriminator": repr(self.tag), "tag": str(name), "expected_tags": known}
            raise PydanticKnownError("union_tag_invalid", context)
        try:
            return self[name].model_validate(data)
        except ValidationError as e:
            raise ValidationError.from_exception_data(e.title, [_again(d, name) for d in e.errors()]) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        members = {name: TypeAdapter(self[name]).core_schema for name in self.table}
        return handler(core_schema.tagged_union_schema(cast(Any, members), discriminator=self.tag))


def _imported(place: str) -> type[Spec]:
    module, _, member = place.partition(":")
    return getattr(import_module(module), member)


def _again(error: Any, *tags: str) -> InitErrorDetails:
    """Return an error to be raised again, with a member's tag before its place, as a union of pydantic's own has it."""
    context = cast(dict[str, Any], error.get("ctx", {}))
    kind: Any = error["type"]
    if kind in ("value_error", "assertion_error"):
        kind = PydanticCustomError("value_error", "{error}", {"error": str(context["error"])})
        context = {}
    return InitErrorDetails(type=kind, loc=(*tags, *error["loc"]), input=error["input"], ctx=context)


def members_of(limits: tuple[Any, ...]) -> Any:
    """Return the spec or union of specs that the constraints of a type stand for; None where they stand for none."""
    found = next((m for m in limits if isinstance(m, Members | Imported)), None)
    return found.union if found else None
