"""What policies say of themselves before anything is asked of them: for commands."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from hardpoint._core.plugins.discovery import Plugin, Plugins

_HOOKS = ("grant_devices", "find_users", "reap_pod")


@dataclass(frozen=True, slots=True)
class PolicyWords:
    """A policy that runs. Without ``kinds`` it is about all of them."""

    id: str
    hooks: frozenset[str]
    """Of grants, releases and reaping."""
    kinds: tuple[str, ...]
    not_applicable: str
    """Why it cannot say anything on this node; empty where it can."""

    def is_about(self, kind: str) -> bool:
        """Say whether a kind is among those that it names."""
        return any(fnmatch.fnmatchcase(kind, pattern) for pattern in self.kinds)


def words_of(plugins: Plugins) -> tuple[PolicyWords, ...]:
    """Return what every policy that runs says, in order of name."""
    return tuple(_words(plugins, plugin) for plugin in plugins.running("policy"))


def _words(plugins: Plugins, plugin: Plugin) -> PolicyWords:
    callers = {hook: getattr(plugins.manager.hook, hook) for hook in _HOOKS}
    return PolicyWords(
        id=plugin.id,
        hooks=frozenset(
            hook
            for hook, caller in callers.items()
            if any(impl.plugin_name == plugin.id for impl in caller.get_hookimpls())
        ),
        kinds=_kinds(plugin.instance),
        not_applicable=_said(plugin.instance, "not_applicable"),
    )


def _kinds(instance: object) -> tuple[str, ...]:
    """Return the kinds that a policy names; one that is a stranger's may name anything."""
    found = getattr(instance, "kinds", ())
    return tuple(map(str, found)) if isinstance(found, tuple | list) else ()


def _said(instance: object, name: str) -> str:
    try:
        return str(getattr(instance, name, ""))
    except Exception as error:  # noqa: BLE001 - a stranger's property may raise anything
        return f"it cannot say whether it is: {type(error).__name__}"


__all__ = ["PolicyWords", "words_of"]
