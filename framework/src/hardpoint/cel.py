"""CEL selectors over an offered device, as a DeviceClass writes them.

The words are those of Kubernetes: ``device.driver``, ``device.attributes["domain"].name``,
``device.capacity["domain"].name``, ``device.allowMultipleAllocations``, with ``quantity`` and
``semver``. A domain that a device has nothing in reads as empty. What is evaluated is CEL's own C++
implementation, from the extra ``hardpoint[cel]``, loaded when the first selector is compiled.

Kubernetes knows a few things more (``sets``, cost limits): an expression may be refused here that
the API server takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

from hardpoint.attributes import is_subdomain, semver
from hardpoint.errors import BadSelector, BadValue
from hardpoint.grants import attributes_of
from hardpoint.model import AttributeValue, Offered, Version
from hardpoint.quantity import amount, canonical

LONGEST = 10 * 1024
"""Bytes of an expression (CELSelectorExpressionMaxLength)."""

_LITERAL = re.compile(r"""["']([^"'\\]+)["']""")
_QUANTITY, _SEMVER = "quantity", "semver"
_WANT = "a CEL expression that is true or false"
_MISSING, _GUARD = "Key not found", "has(…) before it, or .?name.orValue(…)"
_QUOTED = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1""")
_STATUS = re.compile(r"(?:[A-Z_]+: )+")
_PLACE = re.compile(r"<input>:(\d+):(\d+): ")
_LONG = 4
"""Characters of a device's text that are left out of a message also where they are not quoted."""


class Selector:
    """A compiled expression. Raises ``BadValue`` for one that is not CEL, or not a yes or no."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._compiled = _compiled(expression)
        literals = _LITERAL.findall(expression)
        self._domains = tuple(one for one in dict.fromkeys(literals) if is_subdomain(one))

    def matches(self, offered: Offered) -> bool:
        """Say whether a device is selected.

        Raises ``BadValue`` where the expression fails on this device: it reads an attribute that
        the device lacks, mostly, which ``has()`` would guard.
        """
        answer = self._compiled.eval(data=_facts(offered, self._domains))
        value = answer.plain_value()
        if isinstance(value, bool):
            return value
        kind, where = answer.type().name(), f"selector, of device {offered.name}"
        if kind != "ERROR":
            raise BadSelector(where, f"it is {kind.lower()}", _WANT)
        said = _quiet(str(value), self.expression, offered)
        raise BadSelector(where, said, _GUARD if _MISSING in said else _WANT)


def _compiled(expression: str) -> Any:
    try:
        if len(expression.encode()) > LONGEST:
            raise BadValue("selector", "a longer one", f"at most {LONGEST} bytes")
        compiled = _environment().compile(expression)
    except (RuntimeError, UnicodeError) as error:
        raise BadSelector("selector", _first_line(error), _WANT) from error
    result = compiled.return_type().name()
    if result not in ("BOOL", "DYN"):
        raise BadSelector("selector", f"it is {result.lower()}", _WANT)
    return compiled


def _first_line(error: Exception) -> str:
    """Return what the compiler says first, with the line and column that it is about."""
    line = _STATUS.sub("", (str(error).splitlines() or [""])[0], count=1).partition(" (in ")[0]
    return _PLACE.sub(r"line \1, column \2: ", line)


def _quiet(error: str, expression: str, offered: Offered) -> str:
    """Return an error's first line without what it says of the device: it ends in a log.

    What is quoted and does not stand in the expression comes from the hardware.
    """
    line = _STATUS.sub("", error.partition("\n")[0], count=1)
    for value in attributes_of(offered.device, offered.allocation).values():
        text = value.text if isinstance(value, Version) else value
        if isinstance(text, str) and len(text) >= _LONG and text not in expression:
            line = line.replace(text, "…")
    return _QUOTED.sub(lambda found: found[0] if found[2] in expression else "…", line)


# -- what an expression is asked about ------------------------------------------------------------


def _facts(offered: Offered, domains: tuple[str, ...]) -> dict[str, Any]:
    device, own = offered.device, offered.domain.dra_driver
    known = attributes_of(device, offered.allocation)
    attributes = {name: _value(value) for name, value in known.items()}
    capacity = {name: {_QUANTITY: one.value} for name, one in device.capacity.items()}
    return {
        "device.driver": own,
        "device.attributes": _by_domain(attributes, own, domains),
        "device.capacity": _by_domain(capacity, own, domains),
        "device.allowMultipleAllocations": device.shareable,
    }


def _value(value: AttributeValue) -> Any:
    return {_SEMVER: value.text} if isinstance(value, Version) else value


def _by_domain(
    facts: Mapping[str, Any], own: str, domains: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {domain: {} for domain in (own, *domains)}
    for name, value in facts.items():
        domain, _, identifier = name.rpartition("/")
        found.setdefault(domain or own, {})[identifier] = value
    return found


# -- Kubernetes' own functions --------------------------------------------------------------------


def _quantity(text: str) -> dict[str, str]:
    return {_QUANTITY: canonical(text)}


def _semver(text: str) -> dict[str, str]:
    found = semver(text)
    if found is None or found.text != text:
        raise BadValue("semver", text, "a version such as 1.2.3")
    return {_SEMVER: text}


def _is(make: Any, text: str) -> bool:
    try:
        make(text)
    except BadValue:
        return False
    return True


def _compare(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    """Return -1, 0 or 1 for two quantities, or two versions."""
    if one.keys() != other.keys():
        raise BadSelector("compareTo", "one of each", "two quantities, or two versions")
    if _QUANTITY in one:
        a, b = amount(one[_QUANTITY]), amount(other[_QUANTITY])
        return (a > b) - (a < b)
    c, d = _precedence(one[_SEMVER]), _precedence(other[_SEMVER])
    return (c > d) - (c < d)


def _precedence(text: str) -> tuple[Any, ...]:
    """Return what versions sort by (semver.org, 11): a pre-release stands before its release."""
    core, _, before = text.partition("+")[0].partition("-")
    words = tuple(
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in before.split(".") if word
    )
    return tuple(int(number) for number in core.split(".")), not words, words


def _number(index: int, version: Mapping[str, str]) -> int:
    found: int = _precedence(version[_SEMVER])[0][index]
    return found


@cache
def _environment() -> Any:
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
    except ImportError as error:
        raise BadValue("selector", "no CEL here", "the extra: pip install 'hardpoint[cel]'") from (
            error
        )
    kinds = cel.Type
    facts = kinds.Map(kinds.STRING, kinds.Map(kinds.STRING, kinds.DYN))
    return cel.NewEnv(
        variables={
            "device.driver": kinds.STRING,
            "device.attributes": facts,
            "device.capacity": facts,
            "device.allowMultipleAllocations": kinds.BOOL,
        },
        functions=list(_functions(cel)),
        extensions=[
            ext_optional.ExtOptional(),
            ext_bindings.ExtBindings(),
            ext_strings.ExtStrings(),
        ],
    )


def _functions(cel: Any) -> Iterator[Any]:
    """Declare what CEL does not know; a quantity or a version is a map of one entry there."""
    kinds = cel.Type
    value = kinds.Map(kinds.STRING, kinds.STRING)
    of_text: dict[str, tuple[Any, Any]] = {
        "quantity": (_quantity, value),
        "semver": (_semver, value),
        "isQuantity": (partial(_is, _quantity), kinds.BOOL),
        "isSemver": (partial(_is, _semver), kinds.BOOL),
    }
    of_two: dict[str, tuple[Any, Any]] = {
        "compareTo": (_compare, kinds.INT),
        "isGreaterThan": (lambda a, b: _compare(a, b) > 0, kinds.BOOL),
        "isLessThan": (lambda a, b: _compare(a, b) < 0, kinds.BOOL),
    }
    of_one = {
        word: (partial(_number, index), kinds.INT)
        for index, word in enumerate(("major", "minor", "patch"))
    }
    for takes, functions in (
        ([kinds.STRING], of_text),
        ([value, value], of_two),
        ([value], of_one),
    ):
        for name, (impl, gives) in functions.items():
            overload = cel.Overload(
                f"hardpoint_{name}",
                return_type=gives,
                parameters=takes,
                impl=impl,
                is_member=functions is not of_text,
            )
            yield cel.FunctionDecl(name, [overload])


__all__ = ["LONGEST", "Selector"]
