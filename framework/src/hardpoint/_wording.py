"""What pydantic finds wrong, in the words of whoever wrote it: TOML's, and none of Python's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_LIST, _TABLE, _NUMBER = "a list", "a table", "a number"
_WANTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": _TABLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "frozen_set_type": _LIST,
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": _LIST,
    "mapping_type": _TABLE,
    "model_attributes_type": _TABLE,
    "model_type": _TABLE,
    "path_type": "a path",
    "set_type": _LIST,
    "string_type": "text",
    "tuple_type": _LIST,
}
"""By pydantic's type of error."""
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")


def in_words(problem: Mapping[str, Any]) -> str:
    """Return what one of a ``ValidationError``'s problems says; never what was found."""
    kind, message = str(problem["type"]), str(problem["msg"])
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "it is missing"
    if kind in _WANTED:
        return f"want {_WANTED[kind]}"
    wanted = "want a number" if kind in _BOUNDS else "want"
    return message.removeprefix("Value error, ").replace("Input should be", wanted)


def path_of(location: Iterable[str | int]) -> str:
    """Spell a place: ``rules[0].where``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).lstrip(".")


def keys_at(model: type[BaseModel], location: Iterable[str | int]) -> tuple[str, ...]:
    """Return the keys of the table in which something is wrong, in order of name."""
    fields: Mapping[str, Any] = model.model_fields
    for step in tuple(location)[:-1]:
        inner = _model_in(getattr(fields.get(str(step)), "annotation", None))
        fields = fields if inner is None else inner.model_fields
    return tuple(sorted(fields))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field is of, or a list or a table of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((one for one in found if one is not None), None)


def first_problem(model: type[BaseModel], error: ValidationError) -> tuple[str, str, str]:
    """Return where something is wrong, what is, and which keys would do, for an unknown one."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    want = ""
    if first["type"] == "extra_forbidden":
        want = f"the keys are {', '.join(keys_at(model, first['loc'])) or 'none'}"
    return path_of(first["loc"]), in_words(first), want
