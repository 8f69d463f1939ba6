"""Kubernetes quantities (``16Gi``, ``500m``): their value, and the one spelling the server keeps.

The API server stores ``1024Mi`` as ``1Gi``; who compares what it sent with what is stored must
know that, or it writes for ever. Rules: k8s.io/apimachinery, pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal

from hardpoint.errors import BadValue

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]?|[eE][+-]?\d{1,3})", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = Decimal(2**63 - 1)
"""What binary suffixes are cut to; decimal numbers have no limit."""
_NANO = Decimal("1e-9")
_EXACT = Context(prec=400)


def amount(text: str) -> Decimal:
    """Return a quantity's value, rounded away from zero to nanos as the server does.

    Raises ``BadValue`` for what is not a quantity.
    """
    return _parsed(text)[0]


def canonical(text: str) -> str:
    """Return the spelling that the API server stores. Raises ``BadValue``."""
    value, suffix = _parsed(text)
    if suffix in _BINARY and abs(value) >= 1024 and value == value.to_integral_value():
        return _binary(int(value))
    return _decimal(value, exponent=suffix[:1] in ("e", "E") and len(suffix) > 1)


def _parsed(text: str) -> tuple[Decimal, str]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadValue("quantity", text, "a number such as 16Gi, 500m or 2")
    sign, number, suffix = match.groups()
    try:
        value = _amount(number, suffix)
    except ArithmeticError as error:  # more digits than anybody has
        raise BadValue("quantity", text, "a number of fewer digits") from error
    return (-value if sign == "-" else value), suffix


def _amount(number: str, suffix: str) -> Decimal:
    if suffix in _BINARY:
        value = min(_EXACT.multiply(Decimal(number), Decimal(2 ** _BINARY[suffix])), _LARGEST)
    else:
        power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        value = Decimal(number).scaleb(power, _EXACT)
    return value.quantize(_NANO, ROUND_UP, _EXACT)


def _binary(value: int) -> str:
    suffix = ""
    for name in _BINARY:
        if value % 1024:
            break
        value, suffix = value // 1024, name
    return f"{value}{suffix}"


def _decimal(value: Decimal, exponent: bool) -> str:
    nanos, power = int(value.scaleb(9, _EXACT)), -9
    if nanos == 0:
        return "0"
    while nanos % 1000 == 0 and power < 18:
        nanos, power = nanos // 1000, power + 3
    if exponent:
        return f"{nanos}e{power}" if power else str(nanos)
    return str(nanos) + next(name for name, found in _DECIMAL.items() if found == power)
