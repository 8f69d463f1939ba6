"""How the fake API server refuses: ``Status`` objects worded like the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"

_REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that was refused: the API's reason, its message and the field's path."""

    reason: str
    message: str
    field: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ApiProblem(Exception):
    """An answer of 400 or more.

    ``reason`` defaults to the code's own, None leaves it out; so does None with ``details``.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str | None = "",
        details: Mapping[str, Any] | None = None,
        causes: Iterable[Cause] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason = _REASONS.get(code, "Unknown") if reason == "" else reason
        self.causes = tuple(causes)
        self.details = None if details is None and not self.causes else dict(details or {})

    def status(self) -> Json:
        """Return the ``Status`` object."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason is not None:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = {**self.details, **self._listed()}
        return {**status, "code": self.code}

    def _listed(self) -> Json:
        listed = [{"reason": c.reason, "message": c.message, "field": c.field} for c in self.causes]
        return {"causes": listed} if listed else {}


def named(group: str, kind: str, name: str = "") -> Json:
    """Return the details that name an object; what is empty is left out."""
    details = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in details.items() if value}


def qualified(group: str, word: str) -> str:
    """Return ``resourceslices.resource.k8s.io``, as messages name kinds and resources."""
    return f"{word}.{group}" if group else word


def not_found(group: str, plural: str, name: str) -> ApiProblem:
    """There is no such object."""
    details = named(group, plural, name)
    return ApiProblem(404, f'{qualified(group, plural)} "{name}" not found', details=details)


def already_exists(group: str, plural: str, name: str) -> ApiProblem:
    """Create of a name that is taken."""
    details = named(group, plural, name)
    message = f'{qualified(group, plural)} "{name}" already exists'
    return ApiProblem(409, message, "AlreadyExists", details)


def conflict(group: str, plural: str, name: str, why: str) -> ApiProblem:
    """A precondition that does not hold."""
    details = named(group, plural, name)
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiProblem(409, message, details=details)


def modified(group: str, plural: str, name: str) -> ApiProblem:
    """The object is not the one that was read."""
    return conflict(
        group,
        plural,
        name,
        "the object has been modified; please apply your changes to the latest version and try "
        "again",
    )


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> ApiProblem:
    """An object that validation refused, with every cause."""
    listed = ", ".join(str(cause) for cause in causes)
    shown = f"[{listed}]" if len(causes) > 1 else listed
    details = named(group, kind, name)
    message = f'{qualified(group, kind)} "{name}" is invalid: {shown}'
    return ApiProblem(422, message, details=details, causes=causes)


class Causes(list[Cause]):
    """Collects what is wrong with one object, in the words of apimachinery's ``field`` package."""

    def required(self, field: str, detail: str = "") -> None:
        """A field that must be there."""
        self.append(Cause("FieldValueRequired", f"Required value: {detail}".rstrip(": "), field))

    def invalid(self, field: str, value: object, detail: str) -> None:
        """A value of the wrong form."""
        message = f"Invalid value: {_go(value)}: {detail}"
        self.append(Cause("FieldValueInvalid", message, field))

    def say(self, field: str, text: str, faults: Callable[[str], list[str]]) -> None:
        """Check a text; ``faults`` returns the complaints about it."""
        for why in faults(text):
            self.invalid(field, text, why)

    def too_long(self, field: str, most: int) -> None:
        """Text of too many bytes."""
        message = f"Too long: may not be more than {most} bytes"
        self.append(Cause("FieldValueTooLong", message, field))

    def too_many(self, field: str, have: int, most: int) -> None:
        """A list of too many items."""
        message = f"Too many: {have}: must have at most {most} items"
        self.append(Cause("FieldValueTooMany", message, field))

    def duplicate(self, field: str, value: object, detail: str = "") -> None:
        """A value that must be unique."""
        message = f"Duplicate value: {_go(value)}" + (f": {detail}" if detail else "")
        self.append(Cause("FieldValueDuplicate", message, field))

    def forbidden(self, field: str, detail: str) -> None:
        """A field that must not be there."""
        self.append(Cause("FieldValueForbidden", f"Forbidden: {detail}", field))

    def unsupported(self, field: str, value: object, known: Iterable[str]) -> None:
        """A word that is none of an enumeration's."""
        words = ", ".join(f'"{word}"' for word in known)
        message = f"Unsupported value: {_go(value)}: supported values: {words}"
        self.append(Cause("FieldValueNotSupported", message, field))


def _go(value: object) -> str:
    """Return a value as Go's messages quote it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, separators=(",", ":"))
