"""Write the reference pages from the code, so that they cannot drift: `make docs`.

A test compares what this writes with what is in the repository.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import anyio
import cases_page
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import hardpoint
from hardpoint import (
    agent,
    allocation,
    entry,
    errors,
    grants,
    hookspecs,
    model,
    node,
    parameters,
    parts,
)
from hardpoint import settings as settings_module
from hardpoint._core.offline import described, start_plugins
from hardpoint._core.plugins.discovery import Plugin, installed
from hardpoint._where import Share
from hardpoint.cli.attributes import EVERY_DEVICE
from hardpoint.contract import Spec, spec_of
from hardpoint.model import AttributeInfo
from hardpoint.node import Node
from hardpoint.settings import AgentSettings

REFERENCE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `make docs` from the code. -->\n"
_MEANING = {
    "gather": "all plugins at once, each with its own answer",
    "first": "one plugin after the other, until one answers",
    "owner": "the driver that published the device",
    "fold": "one plugin after the other, each given what the one before answered",
    "supervised": "runs for the life of the agent, started again with back-off",
    "skip": "go on without this answer",
    "refuse": "the operation fails",
}


def pages() -> dict[str, str]:
    """Return every generated page by file name, from the folder of the reference."""
    return {
        "hooks.md": hooks(),
        "types.md": types(),
        "attributes.md": attributes(),
        "settings.md": settings(),
        "../explanation/field-cases.md": cases_page.page(),
    }


def hooks() -> str:
    """One heading per hook, in the order of hookspecs.py, under the headings of its sections."""
    intro = inspect.getdoc(hookspecs) or ""
    parts = [f"{_NOTE}\n# Hooks\n\n{_prose(intro)}\n\n{_SEE_TYPES}"]
    section = ""
    for name, title in _in_order():
        if title != section:
            section = title
            parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        parts.append(_hook(name))
    return "".join(parts)


def _in_order() -> Iterator[tuple[str, str]]:
    title = ""
    for line in inspect.getsource(hookspecs).splitlines():
        if found := re.match(r"# -- (.+?) -+$", line):
            title = found[1]
        elif found := re.match(r"(?:async )?def (\w+)\(", line):
            yield found[1], title


def signature(name: str) -> str:
    """Return a hook's signature as it stands in hookspecs.py."""
    function = getattr(hookspecs, name)
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    shown = str(inspect.signature(function)).replace("'", "")
    return f"{word} {name}{shown}"


def _hook(name: str) -> str:
    function = getattr(hookspecs, name)
    spec: Spec = spec_of(function)
    budget = "none" if spec.budget is None else f"{spec.budget:g} s"
    return (
        f"\n### {name}\n\n```python\n{signature(name)}\n```\n\n"
        f"| asked | on a fault | budget |\n| --- | --- | --- |\n"
        f"| {spec.dispatch.value}: {_MEANING[spec.dispatch.value]} "
        f"| {spec.on_fault.value}: {_MEANING[spec.on_fault.value]} | {budget} |\n\n"
        f"{_prose(inspect.getdoc(function) or '')}\n"
    )


def _prose(text: str) -> str:
    return text.replace("``", "`")


def types() -> str:
    """Every type that hooks take and return: one heading each, with its fields and methods."""
    parts = [_TYPES_INTRO]
    for title, source, names in _TYPES:
        tree = ast.parse(inspect.getsource(source))
        found = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        parts += [f"\n## {title}\n"] if title else []
        parts += [_type(source, found[name]) for name in names]
    return "".join(parts)


def _type(source: ModuleType, node: ast.ClassDef | ast.FunctionDef) -> str:
    where = "hardpoint" if node.name in hardpoint.__all__ else source.__name__
    head = f"\n### {node.name}\n\n`from {where} import {node.name}`\n\n"
    text = _prose(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return f"{head}`{_call(node)}`: {text}\n"
    made = next((e for e in node.body if isinstance(e, _DEFS) and e.name == "__init__"), None)
    making = f"`{node.name}({_arguments(made)})`\n\n" if made else ""
    is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
    has = _members(node) if is_enum else _fields(node)
    return f"{head}{making}{text}\n{has}{_methods(node, is_enum=is_enum)}"


def _members(node: ast.ClassDef) -> str:
    """Return a list of an enumeration's members."""
    rows = [
        f"- `{node.name}.{_target(each)}`, {ast.unparse(each.value)}: {_cell(said)}".rstrip(": ")
        for each, said in _with_strings(node.body)
        if isinstance(each, ast.Assign)
    ]
    return "\n" + "".join(f"{row}\n" for row in rows)


def _fields(node: ast.ClassDef) -> str:
    """Return a table of a class's fields, each with the string that stands below it."""
    rows = []
    for each, said in _with_strings(node.body):
        name = _target(each)
        if isinstance(each, ast.AnnAssign) and not name.startswith("_"):
            kind = ast.unparse(each.annotation).strip("'\"").replace("|", "\\|")
            value = ast.unparse(each.value) if each.value else ""
            default = f"`{_EMPTY.get(value, value)}`" if value else "required"
            rows.append(f"| `{name}` | `{kind}` | {default} | {_cell(said)} |\n")
    head = "\n| name | type | default | meaning |\n| - | - | - | - |\n"
    return f"{head}{''.join(rows)}" if rows else ""


def _with_strings(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield statements with the text of the string that stands below each, or nothing."""
    for each, after in zip(body, [*body[1:], None], strict=True):
        text = after.value if isinstance(after, ast.Expr) else None
        yield each, str(text.value) if isinstance(text, ast.Constant) else ""


def _target(each: ast.stmt) -> str:
    """Return what a statement assigns to: ``name``, and for ``self.name`` the same."""
    if isinstance(each, ast.AnnAssign):
        return ast.unparse(each.target).removeprefix("self.")
    if isinstance(each, ast.Assign):
        return ast.unparse(each.targets[0]).removeprefix("self.")
    return ""


def _methods(node: ast.ClassDef, *, is_enum: bool) -> str:
    """Return a list of what can be asked of an object: its properties and methods."""
    rows = []
    for each, said in _with_strings(node.body):
        if isinstance(each, _DEFS) and each.name == "__init__":
            rows += [f"- `{_target(a)}`: {_cell(s)}\n" for a, s in _with_strings(each.body) if s]
        elif isinstance(each, _DEFS) and not each.name.startswith("_"):
            marks = {ast.unparse(mark) for mark in each.decorator_list}
            if "overload" not in marks:
                is_property = marks & {"property", "cached_property"}
                shown = each.name if is_property else _call(each)
                rows.append(f"- `{shown}`: {_cell(ast.get_docstring(each) or '')}\n")
        elif isinstance(each, ast.Assign) and said and not is_enum:
            rows.append(f"- `{_target(each)}`: {_cell(said)}\n")
    return "\n" + "".join(rows) if rows else ""


def _call(each: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async " if isinstance(each, ast.AsyncFunctionDef) else ""
    answer = f" -> {ast.unparse(each.returns)}" if each.returns else ""
    return f"{word}{each.name}({_arguments(each)}){answer}"


def _arguments(each: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return re.sub(r"^(self|cls)(, )?", "", ast.unparse(each.args))


_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_EMPTY = {"field(default_factory=dict)": "{}", "''": '""'}
_SEE_TYPES = """Every type in these signatures is in [types](types.md). A driver that uses most
hooks is written in [your second driver](../tutorials/second-driver.md).
"""
_TYPES_INTRO = f"""{_NOTE}
# Types

What [hooks](hooks.md) take and return. Values are frozen: make a changed one with
`dataclasses.replace`. Sequences become tuples and mappings read-only copies, whatever is passed in.
Fields are given by keyword unless said otherwise; what has no default is required.
"""
_TYPES: tuple[tuple[str, ModuleType, tuple[str, ...]], ...] = (
    ("What a driver publishes", model, ("Device", "DeviceNode", "NodeType")),
    ("", parts, ("Part", "exclusive", "shared")),
    ("", model, ("Capacity", "Topology", "Taint", "Effect", "Version", "slug")),
    ("What else a walk may answer", model, ("Withheld", "Unread")),
    ("What a driver says of a device", model, ("Health", "Condition", "AttributeInfo")),
    ("", model, ("AttributeType",)),
    ("The machine", node, ("Node", "NodeInfo")),
    ("", entry, ("Entry",)),
    ("Settings and claim parameters", parameters, ("Settings", "Parameters")),
    ("Claims and holds", model, ("Claim", "ClaimKey", "Allotment", "Hold", "HoldState")),
    ("What a container receives", model, ("Delivery", "Mount", "Hook", "Addition")),
    ("What is offered, and policies' answers", model, ("Offer", "Offered", "Domain", "Veto")),
    ("", model, ("Verdict",)),
    ("What a plugin raises", errors, ("TryAgain", "Refuse")),
    ("Frontends", agent, ("Agent", "Paths")),
    ("", model, ("PreparedDevice", "Event")),
    ("Device plugin allocations", allocation, ("Assignment", "Assigned", "Allocation", "PodUser")),
    ("", allocation, ("RankRequest",)),
    ("Grants and releases", grants, ("Grant", "GrantedDevice", "GrantOutcome", "Outcome")),
    ("", grants, ("Release", "Evidence", "NodeCondition")),
    ("What the reaper is asked and answers", grants, ("HoldingPod", "ReapResult", "Reaped")),
)


def attributes() -> str:
    """One table per driver: names, types, meanings, sources."""
    answers, _ = anyio.run(described, Node(name="docs"), AgentSettings())
    intro = (
        f"{_NOTE}\n# Attributes\n\nWhat DeviceClasses select by. A name without a domain is in the "
        'domain the device is published under: `device.attributes["hardpoint.dev"].vendor`. An '
        "attribute is absent, never empty or false, so `has()` is a complete test: guard what a "
        "device may lack with it.\n\nThe words of `kind`, and what has capacity, are in "
        "[kinds](kinds.md); examples in [selecting devices](../howto/select.md).\n\n"
        "`hardpoint attributes` prints the same for what runs here.\n"
    )
    tables = [_table("On every device", EVERY_DEVICE)]
    tables += [_table(f"Driver {name}", infos) for name, infos in sorted(answers.items())]
    return intro + "".join(tables)


def settings() -> str:
    """The settings file: its text, an example, and a table for each of its parts."""
    intro = _prose((inspect.getdoc(settings_module) or "").replace("Settings: one", "One", 1))
    parts = [f"{_NOTE}\n# Settings\n\n{intro}\n{_WHERE}{_EXAMPLE}"]
    parts += [_model(title, model) for title, model in _MODELS]
    everything = AgentSettings(
        frontends=tuple(installed("frontend")), policies=tuple(installed("policy"))
    )
    for plugin in start_plugins(everything, Node(name="docs")).all:
        for word, name in (("settings", "Settings"), ("claim parameters", "Parameters")):
            if found := getattr(plugin.loaded, name, None):
                title = f"{word.capitalize()} of {plugin.role} {plugin.name}"
                parts += [_model(title, found), *_lists(plugin, found)]
    return "".join(parts)


def _model(title: str, model: type[BaseModel]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        rows.append(f"| `{name}` | {_cell(field.description or '')} | {default} |\n")
    about = _prose(inspect.getdoc(model) or "")
    head = "| key | meaning | default |\n| - | - | - |\n"
    return f"\n## {title}\n\n{about}\n\n{head}{''.join(rows)}"


def _lists(plugin: Plugin, model: type[BaseModel]) -> Iterator[str]:
    """Yield the tables of a section: ``[[frontend.deviceplugin.resources]]``."""
    for name, field in model.model_fields.items():
        for inner in get_args(field.annotation):
            nested = isinstance(inner, type) and issubclass(inner, BaseModel)
            if nested and all(each.description for each in inner.model_fields.values()):
                yield _model(f"[[{plugin.role}.{plugin.name}.{name}]]", inner)


def _default(value: object) -> str:
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        plain = all(isinstance(item, str | Path) for item in value)
        return f"`{json.dumps([str(item) for item in value])}`" if value and plain else ""
    return f"`{value}`" if value != "" else ""


_WHERE = """
The file is `/etc/hardpoint/hardpoint.toml`, or what `HARDPOINT_CONFIG` or `--config` names. Without
any file every setting has its default; a named file that is missing ends the command. A key that
does not exist is refused with the ones that do.

In a variable `drivers`, `frontends` and `policies` are words between commas; other lists and tables
are JSON, whatever begins with `[` or `{`:

```sh
HARDPOINT_DRIVERS=pci_drm,usb
HARDPOINT_RULES='[{"action": "deny", "where": {"kind": "tty"}, "reason": "kept for the modem"}]'
HARDPOINT_DRIVER__USB__SETTLE_SECONDS=10
```
"""

_EXAMPLE = """
```toml
domain = "hardpoint.example"
drivers = ["pci_drm", "usb"]

[[rules]]                                  # the first that matches decides
action = "deny"
where = {kind = "sound.card"}
reason = "kept for the conference system"

[[rules]]
action = "allow"                           # a disk is offered only where a rule says so
where = {device = "pci-0000-00-1f-2-ata-3-0"}

[[rules]]
action = "relabel"
where = {vendor = "10c4", product = "ea60"}
attributes = {role = "zigbee"}

[[nodes]]
name = "kiosk-*"
settings = {drivers = ["pci_drm"]}
```
"""

_MODELS = (
    ("The file", settings_module.AgentSettings),
    ("[paths]", settings_module.PathSettings),
    ("[names.DRIVER]", settings_module.Names),
    ("[[rules]]", settings_module.Rule),
    ("[frontend.NAME], where more than one runs", Share),
    ("[[nodes]]", settings_module.NodeSection),
    ("[log]", settings_module.LogSettings),
    ("[kube]", settings_module.KubeSettings),
)


def _table(title: str, infos: tuple[AttributeInfo, ...]) -> str:
    rows = [
        f"| `{i.name}` | {i.type.value}{f', {i.unit}' if i.unit else ''} | "
        f"{', '.join(i.kinds) or 'any'} | {_cell(i.meaning)} | "
        f"{_cell(i.source)} | {f'`{i.example}`' if i.example else ''} |\n"
        for i in sorted(infos, key=lambda info: info.name)
    ]
    heading = "| name | type | kinds | meaning | source | example |\n| - | - | - | - | - | - |\n"
    return f"\n## {title}\n\n{heading}{''.join(rows)}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for file, text in pages().items():
        (REFERENCE / file).write_text(text)
        sys.stdout.write(f"docs/reference/{file}\n".replace("reference/../", ""))
