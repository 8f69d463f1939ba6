"""Values of the model as JSON, for the ledger: an exact round trip.

Keys that a newer release added are skipped, and keys that an older one did not write take their
defaults, so that two releases can share one ledger.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from hardpoint.errors import BadValue

_T = TypeVar("_T")


def dump(value: Any) -> str:
    """Return a value of the model, or plain JSON values, as text. Raises ``BadValue``."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadValue("record", type(value).__name__, f"JSON values: {error}") from error


def load(kind: type[_T], text: str | bytes) -> _T:
    """Read a value of the model. Raises ``BadValue`` where the text is not one."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, TypeError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise BadValue("record", kind.__name__, str(error)) from error


def load_facts(text: str | bytes) -> dict[str, Any]:
    """Read what a driver asked to remember."""
    return load(dict[str, Any], text)


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
