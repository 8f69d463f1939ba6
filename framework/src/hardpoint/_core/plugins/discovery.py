"""Which plugins are installed, which of them run, and why the others do not.

Entry points are read live and sorted by name: stevedore's own file cache serves stale names and
loses the distribution (measured with 5.10). One broken plugin never stops its neighbours.
"""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from stevedore import NamedExtensionManager
from stevedore.extension import Extension

import hardpoint
from hardpoint import hookspecs
from hardpoint._core.plugins.calling import Escaped, limited, said
from hardpoint._core.plugins.stating import governed_by, kinds_of
from hardpoint.contract import PROJECT
from hardpoint.errors import HardpointError, PluginRefused
from hardpoint.node import Node

if TYPE_CHECKING:
    from pydantic import BaseModel

_log = logging.getLogger("hardpoint.plugins")

START_BUDGET = 5.0
"""Seconds that a plugin may take to be imported, and again to be made."""

ROLES = ("driver", "policy", "frontend")
_GROUPS = {
    "driver": "hardpoint.drivers",
    "policy": "hardpoint.policies",
    "frontend": "hardpoint.frontends",
}


@dataclass(slots=True)
class Plugin:
    """One installed plugin: where it comes from, and its object if it runs."""

    role: str
    name: str
    target: str = ""
    distribution: str = ""
    version: str = ""
    state: str = "installed"
    """``running``, ``disabled`` or ``refused``; ``missing`` for a name only the settings know."""
    reason: str = ""
    loaded: Any = None
    """The class that the entry point names."""
    instance: Any = None

    @property
    def id(self) -> str:
        """Its name among all roles, as pluggy and the fault board know it: ``driver/usb``."""
        return f"{self.role}/{self.name}"

    def refuse(self, reason: str) -> None:
        """Do not run it, and say why."""
        self.state, self.reason, self.instance = "refused", reason, None
        _log.warning("plugin refused plugin=%s reason=%r", self.id, reason)

    @property
    def parameters_model(self) -> Any:
        """Its ``Parameters`` model, or None."""
        return getattr(self.loaded, "Parameters", None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the settings say of one role: None runs all that is installed."""

    names: tuple[str, ...] | None = None
    disabled: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Say whether the plugin of that name is to run."""
        return name not in self.disabled and (self.names is None or name in self.names)


@dataclass(slots=True)
class Plugins:
    """Everything installed, and the pluggy manager that knows what runs."""

    all: list[Plugin] = field(default_factory=list)
    manager: pluggy.PluginManager = field(default_factory=lambda: pluggy.PluginManager(PROJECT))

    def __post_init__(self) -> None:
        self.manager.add_hookspecs(hookspecs)

    def running(self, role: str) -> tuple[Plugin, ...]:
        """Return the plugins of a role that run, in order of name."""
        return tuple(p for p in self.all if p.role == role and p.state == "running")

    def failed(self, role: str) -> list[tuple[str, str]]:
        """Return the plugins of a role that are wanted and do not run, and why not."""
        found = (p for p in self.all if p.role == role and p.state in ("refused", "missing"))
        return [(plugin.name, plugin.reason) for plugin in found]

    def find(self, role: str, name: str) -> Plugin | None:
        """Return the plugin of that role and name, or None."""
        return next((p for p in self.all if (p.role, p.name) == (role, name)), None)

    def instance(self, id_: str) -> Any:
        """Return the object of the plugin of that id, ``policy/pod_reaper``; None if none runs."""
        plugin = self.find(*id_.split("/", 1))
        return plugin and plugin.instance

    def start(self, plugin: Plugin, node: Node, section: Mapping[str, Any]) -> None:
        """Make the plugin's object and register it, or refuse it."""
        try:
            settings = validated(plugin, section)
            plugin.instance = limited(lambda: plugin.loaded(node, settings), START_BUDGET)
            check_hooks(plugin)
            check_parameters(plugin)
            self.manager.register(plugin.instance, plugin.id)
            self._check_kinds(plugin)
        except PluginRefused as refused:
            plugin.refuse(refused.reason)
        except pluggy.PluginValidationError as error:
            plugin.refuse(said(error))
        except Exception as error:  # noqa: BLE001 - a stranger's constructor may raise anything
            plugin.refuse(f"its constructor raised {said(error)}")
        else:
            plugin.state = "running"

    def _check_kinds(self, plugin: Plugin) -> None:
        """Refuse a policy whose ``kinds`` are none: a source of grants would govern nothing."""
        hooks = {caller.name for caller in self.manager.get_hookcallers(plugin.instance) or ()}
        try:
            if "grant_devices" in hooks:
                governed_by(plugin.instance)
            elif "find_users" in hooks:
                kinds_of(plugin.instance)
        except HardpointError as error:
            self.manager.unregister(plugin.instance)
            raise PluginRefused(plugin.id, str(error)) from error


def installed(role: str) -> frozenset[str]:
    """Return the names of the installed plugins of a role; nothing is imported."""
    return frozenset(point.name for point in metadata.entry_points(group=_GROUPS[role]))


def discover(choices: Mapping[str, Choice]) -> list[Plugin]:
    """List what is installed, importing only what is to run. Order: role, then name."""
    return [plugin for role in ROLES for plugin in _discover(role, choices.get(role, Choice()))]


def _discover(role: str, choice: Choice) -> list[Plugin]:
    points = sorted(metadata.entry_points(group=_GROUPS[role]), key=lambda point: point.name)
    by_name: dict[str, list[metadata.EntryPoint]] = defaultdict(list)
    for point in points:
        by_name[point.name].append(point)
    plugins = {name: _described(role, same) for name, same in by_name.items()}
    for name in choice.names or ():
        if name not in plugins:
            plugins[name] = _missing(role, name, tuple(by_name))
    for plugin in plugins.values():
        if plugin.state == "installed" and not choice.wants(plugin.name):
            plugin.state, plugin.reason = "disabled", "not named in the settings"
    _load([p for p in plugins.values() if p.state == "installed"])
    return [plugins[name] for name in sorted(plugins)]


def _described(role: str, points: Sequence[metadata.EntryPoint]) -> Plugin:
    point = points[0]
    plugin = Plugin(role, point.name, point.value)
    if point.dist is not None:
        plugin.distribution, plugin.version = point.dist.name, point.dist.version
    owners = sorted({p.dist.name if p.dist else p.value for p in points})
    if len(points) > 1:
        plugin.refuse(f"{len(points)} plugins have this name, from {' and '.join(owners)}")
    elif reason := _unmet(point.dist):
        plugin.refuse(reason)
    return plugin


def _missing(role: str, name: str, installed: Iterable[str]) -> Plugin:
    plugin = Plugin(role, name)
    near = get_close_matches(name, installed, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    plugin.state = "missing"
    plugin.reason = (
        f"the settings name it, but no installed package provides it; {meant}"
        f"installed: {', '.join(sorted(installed)) or 'none'}"
    )
    _log.warning("plugin missing plugin=%s", plugin.id)
    return plugin


def _unmet(distribution: metadata.Distribution | None) -> str:
    """Say which ``hardpoint`` the distribution was made for, if it is not this one."""
    for line in (distribution.requires if distribution else None) or ():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        unmet = not wanted.specifier.contains(hardpoint.__version__, prereleases=True)
        if wanted.name == "hardpoint" and unmet:
            return f"made for hardpoint {wanted.specifier}, this is {hardpoint.__version__}"
    return ""


class _Live(NamedExtensionManager[Any]):
    def list_entry_points(self) -> list[metadata.EntryPoint]:
        return sorted(metadata.entry_points(group=self.namespace), key=lambda point: point.name)

    def _load_one_plugin(
        self, ep: metadata.EntryPoint, *invoke: Any, **more: Any
    ) -> Extension[Any] | None:
        """Import one; stevedore lets through what ends a program, and ``AssertionError``."""
        try:
            load = super()._load_one_plugin
            return limited(lambda: load(ep, *invoke, **more), START_BUDGET)
        except AssertionError as error:
            raise Escaped from error


def _load(plugins: list[Plugin]) -> None:
    """Import the classes; what fails to import is refused and the rest go on."""
    if not plugins:
        return
    by_name = {plugin.name: plugin for plugin in plugins}

    def failed(manager: object, point: metadata.EntryPoint, error: BaseException) -> None:
        by_name[point.name].refuse(f"importing {point.value} raised {said(error)}")

    manager = _Live(
        namespace=_GROUPS[plugins[0].role],
        names=list(by_name),
        name_order=True,
        on_load_failure_callback=failed,
        on_missing_entrypoints_callback=lambda missing: None,
    )
    for extension in manager:
        by_name[extension.name].loaded = extension.plugin


def validated(plugin: Plugin, section: Mapping[str, Any]) -> Any:
    """Return the plugin's section as its own ``Settings`` model.

    Raises ``PluginRefused``, saying which key is wrong and which would do.
    """
    model: type[BaseModel] | None = getattr(plugin.loaded, "Settings", None)
    if model is None:
        if section:
            keys = ", ".join(sorted(section))
            raise PluginRefused(plugin.id, f"it takes no settings, but its section has {keys}")
        return None
    from pydantic import ValidationError

    from hardpoint._wording import first_problem

    try:
        return model.model_validate(dict(section))
    except ValidationError as error:
        where, what, want = first_problem(model, error)
        why = f"its settings: {where}: {what}" if where else f"its settings: {what}"
        raise PluginRefused(plugin.id, f"{why}; {want}" if want else why) from error


def check_hooks(plugin: Plugin) -> None:
    """Refuse a plugin that marks a method for no hook of this release, or wraps others' calls."""
    known = set(hookspecs.__all__)
    for name, method in inspect.getmembers(plugin.instance, callable):
        options = getattr(method, f"{PROJECT}_impl", None)
        if inspect.ismethod(method) and name in known and options is None:
            raise PluginRefused(plugin.id, f"{name} is a hook's name, and is not marked @hookimpl")
        if not inspect.isroutine(method) or not isinstance(options, dict):
            continue  # a proxy, say, that has every attribute it is asked for
        hook = options.get("specname") or name
        if hook not in known:
            near = get_close_matches(hook, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PluginRefused(plugin.id, f"{hook} is no hook of this hardpoint{hint}")
        if options.get("wrapper") or options.get("hookwrapper"):
            raise PluginRefused(plugin.id, f"{hook} is a wrapper; plugins do not wrap each other")
        offered = list(inspect.signature(getattr(hookspecs, hook)).parameters)
        for argument in inspect.signature(method).parameters:
            if argument not in offered:
                has = ", ".join(offered) or "no arguments"
                raise PluginRefused(plugin.id, f"{hook} has no argument {argument}; it has {has}")


def unknown_sections(
    plugins: Iterable[Plugin], sections: Mapping[str, Iterable[str]]
) -> Iterator[str]:
    """Yield a sentence for each name in the settings that is no plugin's; ``sections`` by role."""
    by_role: dict[str, list[str]] = defaultdict(list)
    for plugin in plugins:
        if plugin.state != "missing":
            by_role[plugin.role].append(plugin.name)
    for table, names in sections.items():
        role = "driver" if table == "names" else table
        for name in names:
            if name not in by_role[role]:
                have = ", ".join(sorted(by_role[role])) or "none"
                yield f"[{table}.{name}] is for no installed {role}; installed: {have}"


def check_parameters(plugin: Plugin) -> None:
    """Refuse a driver whose ``Parameters`` are no model of ours: every claim looks at the kinds."""
    model = plugin.parameters_model
    if model is None:
        return
    from hardpoint.parameters import Parameters

    if not (isinstance(model, type) and issubclass(model, Parameters)):
        raise PluginRefused(plugin.id, "its Parameters are no subclass of hardpoint.Parameters")
