"""Settings: one TOML file and ``HARDPOINT_…`` variables, checked before anything starts.

A variable is the key in capitals with ``__`` between levels: ``HARDPOINT_DOMAIN``,
``HARDPOINT_PATHS__CDI``, ``HARDPOINT_DRIVER__USB__USBFS``. Variables win over the file. Sections
``[[nodes]]`` apply to nodes chosen by name pattern or label, since one DaemonSet serves mixed
nodes; later ones win. Each plugin's own section is checked by its own model: a bad one refuses that
plugin only. What Kubernetes adds for a Service whose name begins with ``hardpoint``
(``HARDPOINT_SERVICE_HOST`` …) is no setting and is passed over.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hardpoint._where import Share, Where, fits, share_in
from hardpoint._wording import in_words, keys_at, path_of
from hardpoint.agent import Paths
from hardpoint.attributes import LONGEST_NAME, attribute_name, is_label, is_subdomain
from hardpoint.errors import BadSettings
from hardpoint.model import AttributeValue, Domain

PREFIX = "HARDPOINT_"
DEFAULT_FILE = Path("/etc/hardpoint/hardpoint.toml")
DEFAULT_DOMAIN = "hardpoint.dev"
DRIVER_DOMAINS = {"nvidia_gpu": "gpu.hardpoint.dev"}
"""Drivers whose DRA name differs by default, as NVIDIA's own does."""
_M = TypeVar("_M", bound=BaseModel)
_NOT_SETTINGS = {"HARDPOINT_CONFIG"}
_SERVICE_LINK = re.compile(
    r"HARDPOINT_(\w+_)?"
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that the kubelet adds for every Service of the namespace (``enableServiceLinks``)."""
_SECRETIVE = {"kube", "driver", "frontend", "policy"}
"""Tables whose values are not repeated in an error: a password may have gone astray there."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        if isinstance(value, Path) and "\0" in str(value):
            raise ValueError("no path holds a NUL")
        return value


def _domain(value: str | None) -> str | None:
    if value is not None and not (is_subdomain(value) and len(value) <= 63 and value[0].isalpha()):
        raise ValueError(
            "want a lower-case DNS subdomain of at most 63 characters that starts with a letter "
            "(ResourceSlice spec.driver and CDI vendor names)"
        )
    return value


def _prefix(value: str | None) -> str | None:
    """Refuse a prefix of extended resources that the kubelet takes for one of Kubernetes' own.

    It only logs that the registration is bad (``IsExtendedResourceName`` of component-helpers).
    """
    if value is not None and (value.endswith("kubernetes.io") or value.startswith("requests.")):
        raise ValueError(
            "want a domain of your own: Kubernetes keeps names that end in kubernetes.io or begin "
            "with requests. for itself"
        )
    return _domain(value)


class Names(_Section):
    """What devices are published under; ``domain`` sets all that is not set alone."""

    domain: str | None = None
    """Sets the three below."""
    dra_driver: str | None = None
    """The DRA driver name: ``spec.driver`` of ResourceSlices."""
    resource_prefix: str | None = None
    """What extended resources of the device plugin API begin with."""
    cdi_vendor: str | None = None
    """The vendor in CDI names and files."""

    @field_validator("dra_driver", "cdi_vendor")
    @classmethod
    def _valid(cls, value: str | None) -> str | None:
        return _domain(value)

    @field_validator("domain", "resource_prefix")
    @classmethod
    def _valid_prefix(cls, value: str | None) -> str | None:
        return _prefix(value)


class PathSettings(_Section):
    """Directories of the host."""

    state: Path = Paths().state
    """Ledger, locks and status of the agent; made with mode 0700."""
    cdi: Path = Paths().cdi
    """Where the container runtime reads CDI files; mounted at the same path."""
    kubelet: Path = Paths().kubelet
    """The kubelet's ``--root-dir``, mounted at the same path."""
    device_plugins: Path = Paths().device_plugins
    """The kubelet's device plugin directory, which does not follow its root."""
    sys: Path = Path("/sys")
    """Where sysfs is."""
    dev: Path = Path("/dev")
    """Where the host's device nodes are."""
    proc: Path = Path("/proc")
    """Where procfs is; ``1/mountinfo`` in it must be the host's, or every disk is kept back."""
    run: Path = Path("/run")
    """Where udev keeps its database, if it runs; only read."""


class Rule(_Section):
    """An admin's rule, the last word on a device: the first that allows or denies it decides.

    A rule that relabels goes on to the next one; rules ask what the driver published, whatever was
    relabelled. Those of a node's section and of a variable stand before those of the file.

    ``where`` maps ``device`` (its name), ``kind``, ``plugin`` (the driver that publishes it) or an
    attribute to a value; text may be a pattern (``usb-1-*``), and every entry must match.
    """

    action: Literal["allow", "deny", "relabel"]
    """What happens to a device that matches. ``allow`` is what block devices need."""
    where: Where = Field(min_length=1)
    """What must match; ``false`` matches a device without that attribute."""
    reason: str = ""
    """With ``deny``: the sentence that ``devices --why`` shows."""
    name: str | None = None
    """With ``relabel``: a new device name."""
    attributes: Mapping[str, str | int | bool] = Field(default_factory=dict)
    """With ``relabel``: attributes to set; an empty text removes one."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not is_label(value):
            raise ValueError(
                f"want lower-case letters, digits and dashes, at most {LONGEST_NAME} of them"
            )
        return value

    @field_validator("attributes")
    @classmethod
    def _attributes(cls, value: Mapping[str, str | int | bool]) -> Mapping[str, str | int | bool]:
        for name in value:
            attribute_name(name)
        return value

    @model_validator(mode="after")
    def _belongs(self) -> Rule:
        """Refuse what would do nothing."""
        relabels = self.name is not None or bool(self.attributes)
        if relabels and self.action != "relabel":
            raise ValueError(f"name and attributes belong to relabel, not to {self.action}")
        if self.reason and self.action != "deny":
            raise ValueError(f"a reason belongs to deny, not to {self.action}")
        if self.action == "relabel" and not relabels:
            raise ValueError("relabel wants a name or attributes")
        return self

    def matches(self, facts: Mapping[str, AttributeValue]) -> bool:
        """Say whether a device with these facts is meant."""
        return fits(self.where, facts)


class LogSettings(_Section):
    """How the agent logs, on standard error."""

    format: Literal["text", "json"] = "text"
    """One line for each event: ``key=value`` text, or a JSON object."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""


class KubeSettings(_Section):
    """How the API server is reached; in a pod nothing needs to be set."""

    url: str | None = None
    """Address of the API server."""
    token_file: Path | None = None
    """File with a bearer token for ``url``; read again when it changes."""
    ca_file: Path | None = None
    """Certificate authority of ``url``."""
    kubeconfig: Path | None = None
    """A kubeconfig, in place of ``url``; its current context."""


class NodeSection(_Section):
    """Settings for the nodes whose name matches ``name`` and that carry every one of ``labels``."""

    name: str = "*"
    """Pattern of the node's name."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels that the node must carry."""
    settings: Mapping[str, Any]
    """Any part of this file, merged over what stands above it."""

    def applies(self, node: str, labels: Mapping[str, str]) -> bool:
        """Say whether it is for a node."""
        carried = all(labels.get(key) == value for key, value in self.labels.items())
        return carried and fnmatch.fnmatchcase(node, self.name)


class AgentSettings(_Section):
    """The whole settings file."""

    domain: str = DEFAULT_DOMAIN
    """What devices are published under; sets the three below."""
    dra_driver: str | None = None
    """The DRA driver name: ``spec.driver`` of ResourceSlices."""
    resource_prefix: str | None = None
    """What extended resources of the device plugin API begin with."""
    cdi_vendor: str | None = None
    """The vendor in CDI names and files."""
    cdi_version: Literal["0.5.0", "0.6.0", "0.7.0"] = "0.7.0"
    """The newest CDI format that the container runtime reads; containerd 1.7 reads 0.6.0 at most.
    Before 0.7.0 the groups of nodes cannot be said: who is not root needs ``supplementalGroups``
    in the pod. A file is of the lowest version that says what is in it."""
    node_name: str = ""
    """The Kubernetes node; empty takes NODE_NAME, or the host's name."""
    drivers: tuple[str, ...] | None = None
    """Which drivers run; all that are installed if unset."""
    frontends: tuple[str, ...] | None = None
    """Which frontends run; ``dra`` if it is installed, else all, if unset."""
    policies: tuple[str, ...] = ()
    """Which policies run. While one of these does not, nothing is offered."""
    paths: PathSettings = PathSettings()
    """Directories of the host."""
    names: Mapping[str, Names] = Field(default_factory=dict)
    """Names per driver: ``[names.nvidia_gpu] domain = "gpu.example.com"``."""
    driver: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """A section for each driver, checked by the driver's own model: ``[driver.usb]``."""
    frontend: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """A section for each frontend: ``[frontend.dra]``. Which devices it offers, where more than one
    runs, is said there too."""
    policy: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """A section for each policy."""
    rules: tuple[Rule, ...] = ()
    """The admin's rules for devices."""
    nodes: tuple[NodeSection, ...] = ()
    """Settings for some nodes only."""
    log: LogSettings = LogSettings()
    """How the agent logs."""
    kube: KubeSettings = KubeSettings()
    """How the API server is reached."""

    @field_validator("dra_driver", "cdi_vendor")
    @classmethod
    def _valid(cls, value: str | None) -> str | None:
        return _domain(value)

    @field_validator("domain", "resource_prefix")
    @classmethod
    def _valid_prefix(cls, value: str | None) -> str | None:
        return _prefix(value)

    @field_validator("frontend")
    @classmethod
    def _shares(cls, value: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        for name, section in value.items():
            try:
                share_in(section)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False)[0]
                raise ValueError(f"{name}.{path_of(first['loc'])}: {in_words(first)}") from error
        return value

    @field_validator("node_name")
    @classmethod
    def _node(cls, value: str) -> str:
        if value and not is_subdomain(value):
            raise ValueError("want a lower-case DNS subdomain, as nodes are named")
        return value

    def domain_of(self, driver: str) -> Domain:
        """Return the names that a driver's devices are published under."""
        own = self.names.get(driver, Names())
        base = own.domain or self.domain
        default = DRIVER_DOMAINS.get(driver) if base == DEFAULT_DOMAIN else None
        shared = own.domain is None
        return Domain(
            own.dra_driver or (shared and self.dra_driver) or default or base,
            own.resource_prefix or (shared and self.resource_prefix) or base,
            own.cdi_vendor or (shared and self.cdi_vendor) or base,
        )

    def share_of(self, frontend: str) -> Share:
        """Return which devices a frontend offers."""
        return share_in(self.frontend.get(frontend, {}))

    def agent_paths(self) -> Paths:
        """Return the directories as the agent hands them to frontends."""
        paths = self.paths
        return Paths(
            state=paths.state,
            cdi=paths.cdi,
            kubelet=paths.kubelet,
            device_plugins=paths.device_plugins,
        )


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    node: str = "",
    labels: Mapping[str, str] | None = None,
) -> AgentSettings:
    """Read the settings for a node. Raises ``BadSettings``, saying where and what would do.

    Without ``file``, HARDPOINT_CONFIG or /etc/hardpoint/hardpoint.toml is read where it exists.
    """
    environment = os.environ if environment is None else environment
    path, raw = _read(file, environment)
    node = node or environment.get("HARDPOINT_NODE_NAME") or environment.get("NODE_NAME", "")
    variables = _from_environment(environment)
    raw["nodes"] = variables.pop("nodes", raw.get("nodes", ()))
    whole = raw
    for number, section in enumerate(_sections(raw["nodes"], path)):
        merged = _merged(whole, section.settings)
        _validated(AgentSettings, merged, f"{path}: nodes[{number}].settings")
        if section.applies(node, labels or {}):
            whole = merged
    whole = _merged(whole, variables)
    if not whole.get("node_name") and node:
        whole["node_name"] = node
    return _validated(AgentSettings, whole, path, variables)


def needs_labels(file: Path | None = None, environment: Mapping[str, str] | None = None) -> bool:
    """Say whether the settings choose by the node's labels, which the API server knows."""
    environment = os.environ if environment is None else environment
    path, raw = _read(file, environment)
    nodes = _from_environment(environment).get("nodes", raw.get("nodes", ()))
    return any(section.labels for section in _sections(nodes, path))


def _read(file: Path | None, environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    named = file or (Path(p) if (p := environment.get("HARDPOINT_CONFIG")) else None)
    path = named or DEFAULT_FILE
    try:
        return str(path), tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if named is None:
            return "settings", {}
        raise BadSettings(str(path), "no such file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadSettings(str(path), f"is not TOML: {error}") from error
    except (OSError, ValueError) as error:
        raise BadSettings(str(path), f"cannot be read: {error}") from error


def _sections(raw: Any, path: str) -> Iterable[NodeSection]:
    if not isinstance(raw, list | tuple):
        raise BadSettings(f"{path}: nodes", "is not a list", "write [[nodes]]")
    where = f"{path}: nodes"
    return tuple(_validated(NodeSection, one, f"{where}[{i}]") for i, one in enumerate(raw))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        elif key == "rules" and isinstance(old, list) and isinstance(value, list):
            merged[key] = [*value, *old]  # a deny for all must not be lost to a rule for some
        else:
            merged[key] = value
    return merged


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        if "__" not in variable and _SERVICE_LINK.fullmatch(variable):
            continue
        *above, last = variable.removeprefix(PREFIX).lower().split("__")
        table = raw
        for key in above:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise BadSettings(variable, f"{key} is set as a value too")
        table[last] = _parsed(last, value, top=not above)
    return raw


def _parsed(key: str, value: str, *, top: bool) -> Any:
    """Understand a variable: JSON for tables and lists, words between commas, or plain text."""
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):  # a number of too many digits is a plain ValueError
            return value
    if top and key in ("drivers", "frontends", "policies"):
        return [word.strip() for word in value.split(",") if word.strip()]
    return {"true": True, "false": False}.get(value, value)


def _validated(
    model: type[_M], raw: Any, where: str, variables: Mapping[str, Any] | None = None
) -> _M:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = path_of(first["loc"]) or model.__name__
        want = ""
        if first["type"] == "extra_forbidden":
            want = f"the keys are {', '.join(keys_at(model, first['loc']))}"
        variable = _variable(first["loc"], variables or {})
        raise BadSettings(variable or f"{where}: {path}", _said(first), want) from error


def _variable(location: tuple[Any, ...], variables: Mapping[str, Any]) -> str:
    """Return the variable that set what is wrong; empty if the file did."""
    found: Any = variables
    words: list[str] = []
    for step in location:
        if not isinstance(found, Mapping):
            break
        if step not in found:
            return ""
        found = found[step]
        words.append(str(step))
    return PREFIX + "__".join(words).upper() if words else ""


def _said(problem: Any) -> str:
    said = in_words(problem)
    if problem["type"] in ("extra_forbidden", "missing"):
        return said
    if problem["loc"][:1] and problem["loc"][0] in _SECRETIVE:
        return said
    return f"{said} (found {problem['input']!r:.60})"
