"""What the admin's rules say of devices, and of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from hardpoint.model import AttributeValue, Device
from hardpoint.settings import Rule


def facts_of(device: Device) -> dict[str, AttributeValue]:
    """Return what a rule may ask of a device: its attributes, name, kind and plugin."""
    own = {"device": device.name, "kind": device.kind, "plugin": device.driver}
    return {**device.attributes, **own}


def is_named(device: Device, rules: Sequence[Rule]) -> bool:
    """Say whether the rule that decides on a device allows it by its very name.

    That is a person's word for this one device; a pattern is not.
    """
    asked = facts_of(device)
    rule = next((r for r in rules if r.action != "relabel" and r.matches(asked)), None)
    return rule is not None and rule.action == "allow" and rule.where.get("device") == device.name


def rule_for(name: str) -> str:
    """Return the rule that allows the device of this name and no other."""
    return f'[[rules]] action = "allow", where = {{device = "{name}"}}'


def idle_rules(
    rules: Sequence[Rule], used: frozenset[int], known: Mapping[str, type]
) -> Iterator[str]:
    """Yield a sentence for each rule that matched no device; ``known`` are attributes there are.

    A rule that denies nothing, for a misspelt word, would be an open door.
    """
    for number, rule in enumerate(rules):
        if number not in used:
            why = "; ".join(_suspect(rule, known))
            yield f"[[rules]] number {number + 1} ({rule.action}) matches no device here" + (
                f": {why}" if why else ""
            )


def _suspect(rule: Rule, known: Mapping[str, type]) -> Iterator[str]:
    words = {**known, "device": str, "kind": str, "plugin": str}
    for key, wanted in rule.where.items():
        if key not in words:
            near = get_close_matches(key, words, 1)
            hint = f", did you mean {near[0]}?" if near else ""
            yield f"no driver that runs describes {key}{hint}"
        elif wanted is not False and not isinstance(wanted, words[key]):
            yield f"{key} is of type {words[key].__name__}, not {type(wanted).__name__}"
