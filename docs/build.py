"""Write the reference pages from the code, so that they cannot drift: `make docs`.

A test compares what this writes with what is in the repository.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
from hardpoint import hookspecs
from hardpoint import settings as settings_module
from hardpoint._core.offline import described, start_plugins
from hardpoint.cli.attributes import EVERY_DEVICE
from hardpoint.contract import Spec, spec_of
from hardpoint.model import AttributeInfo
from hardpoint.node import Node
from hardpoint.settings import AgentSettings
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

REFERENCE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `make docs` from the code. -->\n"
_MEANING = {
    "gather": "all plugins at once, each with its own answer",
    "owner": "the driver that published the device",
    "fold": "one plugin after the other, each given what the one before answered",
    "supervised": "runs for the life of the agent, started again with back-off",
    "skip": "go on without this answer",
    "refuse": "the operation fails",
}


def pages() -> dict[str, str]:
    """Return every generated page by file name."""
    return {"hooks.md": hooks(), "attributes.md": attributes(), "settings.md": settings()}


def hooks() -> str:
    """One heading per hook, in the order of hookspecs.py, under the headings of its sections."""
    intro = inspect.getdoc(hookspecs) or ""
    parts = [f"{_NOTE}\n# Hooks\n\n{_prose(intro)}\n"]
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


def attributes() -> str:
    """One table per driver: names, types, meanings, sources."""
    answers, _ = anyio.run(described, Node(name="docs"), AgentSettings())
    intro = (
        f"{_NOTE}\n# Attributes\n\nWhat DeviceClasses select by. A name without a domain is in the "
        'domain the device is published under: `device.attributes["hardpoint.dev"].vendor`. An '
        "attribute is absent, never empty or false, so `has()` is a complete test: guard what a "
        "device may lack with it.\n\n`hardpoint attributes` prints the same for what runs here.\n"
    )
    tables = [_table("On every device", EVERY_DEVICE)]
    tables += [_table(f"Driver {name}", infos) for name, infos in sorted(answers.items())]
    return intro + "".join(tables)


def settings() -> str:
    """The settings file: its text, an example, and a table for each of its parts."""
    intro = _prose((inspect.getdoc(settings_module) or "").replace("Settings: one", "One", 1))
    parts = [f"{_NOTE}\n# Settings\n\n{intro}\n{_EXAMPLE}"]
    parts += [_model(title, model) for title, model in _MODELS]
    for plugin in start_plugins(AgentSettings(), Node(name="docs")).all:
        for word, model in (("settings", "Settings"), ("claim parameters", "Parameters")):
            if found := getattr(plugin.loaded, model, None):
                parts.append(_model(f"{word.capitalize()} of {plugin.role} {plugin.name}", found))
    return "".join(parts)


def _model(title: str, model: type[BaseModel]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        rows.append(f"| `{name}` | {_cell(field.description or '')} | {default} |\n")
    about = _prose(inspect.getdoc(model) or "")
    head = "| key | meaning | default |\n| - | - | - |\n"
    return f"\n## {title}\n\n{about}\n\n{head}{''.join(rows)}"


def _default(value: object) -> str:
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return f"`{value}`" if value not in ((), "") else ""


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
        sys.stdout.write(f"docs/reference/{file}\n")
