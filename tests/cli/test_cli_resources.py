"""Which extended resource each device would be, said without an agent; and frontends that clash."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from shell import Shell

SCHEMA = json.loads(resources.files("hardpoint.cli").joinpath("devices.schema.json").read_text())
FRONTEND = """
drivers = ["radios"]
frontends = ["deviceplugin"]

[[frontend.deviceplugin.resources]]
name = "example.com/first"
selector = 'device.attributes["hardpoint.dev"].kind == "radio"'
limit = 1
"""


@pytest.fixture
def plugin(shell: Shell) -> Shell:
    pytest.importorskip("cel_expr_python")
    shell.install_radios("radio0", "radio1")
    shell.config.write_text(FRONTEND)
    return shell


def devices(shell: Shell, **variables: str) -> dict[str, Any]:
    answer = shell("devices", "--json", "--sysfs", shell.tree, **variables)
    jsonschema.validate(answer.json, SCHEMA)
    return {one["name"]: one.get("resources") for one in answer.json["devices"]}


def test_each_device_is_shown_in_the_one_resource_that_it_falls_into(plugin: Shell) -> None:
    assert devices(plugin) == {
        "radio0": ["example.com/first"],
        "radio1": ["hardpoint.dev/radio"],
    }
    table = plugin("devices", "--sysfs", plugin.tree).out.splitlines()
    assert "RESOURCE" in table[0]
    assert [line.split()[-1] for line in table if line.startswith("radio")] == [
        "example.com/first",
        "hardpoint.dev/radio",
    ]
    one = plugin("devices", "radio0", "--sysfs", plugin.tree).out
    assert "resource    example.com/first" in one


def test_a_device_that_no_resource_takes_is_shown_as_in_none(plugin: Shell) -> None:
    plugin.config.write_text(FRONTEND + "\n[frontend.deviceplugin]\nkinds = []\n")

    assert devices(plugin) == {"radio0": ["example.com/first"], "radio1": []}
    assert "resource    none" in plugin("devices", "radio1", "--sysfs", plugin.tree).out


def test_what_the_frontend_leaves_to_another_is_in_none(plugin: Shell) -> None:
    without = '\n[[frontend.deviceplugin.without]]\ndevice = "radio1"\n'
    plugin.config.write_text(FRONTEND + without)

    assert devices(plugin)["radio1"] == []


def test_a_selector_that_is_wrong_is_said_where_resources_are_asked_for(plugin: Shell) -> None:
    plugin.config.write_text(FRONTEND.replace(" == ", " = "))

    shown = plugin("devices", "--sysfs", plugin.tree)

    assert "! frontend/deviceplugin: refused: its settings: resources[0].selector" in shown.out
    assert "(nothing is offered through it)" in shown.out


def test_without_the_device_plugin_there_are_no_resources_to_show(plugin: Shell) -> None:
    assert devices(plugin, HARDPOINT_FRONTENDS="dra") == {"radio0": None, "radio1": None}
    table = plugin("devices", "--sysfs", plugin.tree, HARDPOINT_FRONTENDS="dra").out
    assert "RESOURCE" not in table.splitlines()[0]


def test_frontends_that_leave_each_other_nothing_are_not_shown_as_running(shell: Shell) -> None:
    answer = shell("plugins", "--json", HARDPOINT_FRONTENDS="dra,deviceplugin")

    found = {one["name"]: one for one in answer.json if one["role"] == "frontend"}
    assert answer.code == 1
    for name in ("dra", "deviceplugin"):
        assert found[name]["state"] == "refused"
        assert "the agent does not start: frontend." in found[name]["reason"]
    refused = shell("run", HARDPOINT_FRONTENDS="dra,deviceplugin")
    assert refused.code != 0
