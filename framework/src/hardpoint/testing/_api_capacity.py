"""What the real API server refuses in a device's capacity: policies of requests for a part."""

from __future__ import annotations

from itertools import pairwise

from hardpoint.quantity import amount, canonical
from hardpoint.testing._api_status import Causes, Json

_LARGEST = 2**63 - 1


def check_capacity(causes: Causes, path: str, found: Json, device: Json) -> None:
    """Check one capacity of a device."""
    policy, path = found.get("requestPolicy"), f"{path}.requestPolicy"
    if policy is None:
        return
    values, span = policy.get("validValues") or [], policy.get("validRange")
    if not device.get("allowMultipleAllocations"):
        causes.forbidden(path, "allowMultipleAllocations must be true")
    elif values and span is not None:
        detail = (
            "exactly one policy can be specified, "
            'cannot specify "validValues" and "validRange" at the same time'
        )
        causes.forbidden(path, detail)
    elif values and policy.get("default") is None:
        causes.required(f"{path}.default", "required when validValues is defined")
    elif values:
        _values(causes, f"{path}.validValues", values, policy["default"], found["value"])
    elif span is not None and policy.get("default") is None:
        causes.required(f"{path}.default", "required when validRange is defined")
    elif span is not None:
        _Range(causes, f"{path}.validRange", span, policy["default"], found["value"]).check()


def _values(causes: Causes, path: str, values: list[str], default: str, whole: str) -> None:
    amounts = [amount(value) for value in values]
    for index, (before, after) in enumerate(pairwise(amounts), 1):
        if before > after:
            causes.invalid(
                f"{path}[{index}]", values[index], "values must be sorted in ascending order"
            )
    seen = amounts
    if len(values) > 10:
        causes.too_many(path, len(values), 10)
        seen = []
    for index, (value, found) in enumerate(zip(values, seen, strict=False)):
        if found > amount(whole):
            detail = f"option is larger than capacity value: {whole}"
            causes.invalid(f"{path}[{index}]", value, detail)
        if found in seen[:index]:
            causes.duplicate(f"{path}[{index}]", f"{found.normalize():f}")
    if amount(default) not in seen:
        detail = "default value is not valid according to the requestPolicy"
        causes.invalid(path, default, detail)


class _Range:
    """A ``validRange`` around a default, within a capacity."""

    def __init__(self, causes: Causes, path: str, span: Json, default: str, whole: str) -> None:
        self._causes, self._path, self._span = causes, path, span
        self._default, self._whole = default, whole

    def check(self) -> None:
        if "min" not in self._span:
            self._causes.required(f"{self._path}.min", "required when validRange is defined")
            return
        self._bounds()
        if self._fine("milli"):
            self._step()

    def _bounds(self) -> None:
        least, most, default = self._span["min"], self._span.get("max"), self._default
        if amount(least) > amount(self._whole):
            self._say("min", least, f"min is larger than capacity value: {self._whole}")
        if amount(default) < amount(least):
            self._say("default", default, f"default is less than min: {least}")
        if most is None:
            return
        if amount(least) > amount(most):
            self._say("max", least, f"min is larger than max: {most}")
        if amount(most) > amount(self._whole):
            self._say("max", most, f"max is larger than capacity value: {self._whole}")
        if amount(default) > amount(most):
            self._say("default", default, f"default is more than max: {most}")

    def _step(self) -> None:
        step, least = self._span.get("step"), self._span["min"]
        if step is None:
            return
        if amount(step) <= 0:
            self._say("step", step, "must be greater than zero")
            return
        once = _sum(least, step)
        if amount(once) > amount(self._whole):
            detail = f"one step {once} is larger than capacity value: {self._whole}"
            self._say("step", step, detail)
        if not self._fine("int64"):
            return
        for value in (self._default, *([self._span["max"]] if "max" in self._span else [])):
            if (amount(value) - amount(least)) % amount(step):
                detail = f"value is not a multiple of a given step ({step}) from ({least})"
                self._say("step", value, detail)

    def _fine(self, what: str) -> bool:
        """Say whether every value can be computed with: in thousandths, or as an integer."""
        given = {"default": self._default, **self._span}
        broken = any(amount(value) % 1 for value in given.values())
        bad = []
        for name in ("default", "min", "max", "step"):
            value = amount(given.get(name, "0"))
            if what == "milli" and broken and (value * 1000) % 1:
                bad.append((name, "value cannot be represented as a milli value"))
            if what == "int64" and not broken and not 0 <= value <= _LARGEST:
                bad.append((name, _no_integer(value < 0)))
        for name, detail in bad:
            self._say(name, given[name], detail)
        return not bad

    def _say(self, name: str, value: str, detail: str) -> None:
        self._causes.invalid(f"{self._path}.{name}", value, detail)


def _no_integer(negative: bool) -> str:
    return (
        "must be greater than or equal to 0" if negative else f"must not be larger than {_LARGEST}"
    )


def _sum(first: str, second: str) -> str:
    """Add as the server does: the sum is spelled as the first is."""
    total = amount(first) + amount(second)
    binary = first[-1:] == "i" or (first == "0" and second[-1:] == "i")
    return canonical(f"{total / 1024:f}Ki" if binary else f"{total:f}")
