"""Quantities as the API server stores them: in its own spelling, or in the client's.

It keeps a text that it reads as a machine integer and takes for canonical (``+5``, ``1.500``), and
spells every other anew. Rules: k8s.io/apimachinery, pkg/api/resource/quantity.go, ParseQuantity.
"""

from __future__ import annotations

import re

from hardpoint.errors import BadValue
from hardpoint.quantity import canonical

_PARTS = re.compile(r"[+-]?0*(\d*)(?:\.(\d*))?([a-zA-Z]*)([+-]?\d*)")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MOST_DIGITS = 18
_FORM = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def stored(value: object) -> str:
    """Return what a JSON value is stored as. Raises ``BadValue`` with the server's words."""
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9.]+[a-zA-Z]*[-+]?[0-9]*", text):
        raise Unreadable(_FORM)
    try:
        spelled = canonical(text)
    except BadValue:
        known = re.fullmatch(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*", text)
        raise Unreadable("unable to parse quantity's suffix" if known else _FORM) from None
    return text if _kept(text) else spelled


class Unreadable(ValueError):
    """A text that is no quantity."""


def _kept(text: str) -> bool:
    """Say whether the server takes a text for canonical."""
    match = _PARTS.fullmatch(text)
    assert match is not None, "it is a quantity"
    whole, part, suffix, power = match[1] or "0", match[2] or "", match[3], match[4]
    if text == "0":
        return True
    digits = whole + part
    if suffix in _BINARY:
        room = 14 - len(whole) - int(_BINARY[suffix] * 3 / 10)
        return room >= 0 and not part and int(whole) % 8 != 0
    scale = (int(power) if power else _DECIMAL[suffix]) - len(part)
    if len(digits) > _MOST_DIGITS or scale < -9 or scale % 3:
        return False
    return not digits.endswith("000") and digits[0] != "0"
