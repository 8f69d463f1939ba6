"""Which plugins run, and what is said of those that do not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardpoint import hookimpl
from hardpoint._core.plugins.discovery import Choice, Plugin, Plugins, discover, unknown_sections
from hardpoint.node import Node

GOOD = """
from hardpoint import Device, hookimpl
class Good:
    def __init__(self, node, settings): ...
    @hookimpl
    def publish_devices(self): return []
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install a distribution as pip would: a dist-info folder beside a module."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    made: list[str] = []

    def one(
        name: str, point: str, source: str = GOOD, requires: str = "hardpoint>=0.1,<0.2"
    ) -> None:
        module = name.replace("-", "_")
        made.append(module)
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nRequires-Dist: {requires}\n"
        )
        (info / "entry_points.txt").write_text(f"[hardpoint.drivers]\n{point} = {module}:Good\n")

    yield one
    for module in made:
        sys.modules.pop(module, None)


def _drivers(**choice: Any) -> dict[str, Plugin]:
    return {p.name: p for p in discover({"driver": Choice(**choice)}) if p.role == "driver"}


def test_an_installed_package_is_found_with_where_it_came_from(install: Any) -> None:
    install("acme-fpga", "acme")

    plugin = _drivers()["acme"]

    assert (plugin.state, plugin.distribution, plugin.version) == ("installed", "acme-fpga", "1.2")


def test_a_package_that_cannot_be_imported_is_refused_and_the_rest_load(install: Any) -> None:
    install("acme-broken", "broken", source="import does_not_exist_here\n")
    install("acme-fine", "fine")

    found = _drivers()

    assert found["broken"].state == "refused"
    assert "does_not_exist_here" in found["broken"].reason
    assert found["fine"].loaded is not None


def test_two_packages_of_one_name_are_both_refused_by_name(install: Any) -> None:
    install("acme-one", "same")
    install("acme-other", "between")
    install("acme-two", "same")

    plugin = _drivers()["same"]

    assert plugin.state == "refused"
    assert "acme-one and acme-two" in plugin.reason


def test_a_package_made_for_another_release_says_which(install: Any) -> None:
    install("acme-old", "old", requires="hardpoint>=7")

    assert _drivers()["old"].reason == "made for hardpoint >=7, this is 0.1.0"


def test_a_plugin_that_is_not_wanted_is_not_even_imported(install: Any) -> None:
    install("acme-off", "off", source="raise SystemExit('imported')\n")

    plugin = _drivers(disabled=frozenset({"off"}))["off"]

    assert (plugin.state, plugin.loaded) == ("disabled", None)


def test_a_name_in_the_settings_that_nothing_provides_is_missing(install: Any) -> None:
    install("acme-fpga", "acme")

    plugin = _drivers(names=("acmee",))["acmee"]

    assert plugin.state == "missing"
    assert "installed: acme" in plugin.reason


def _start(made: type, section: dict[str, Any] | None = None) -> Plugin:
    plugin = Plugin("driver", "p", loaded=made)
    plugins = Plugins([plugin])
    plugins.start(plugin, Node(name="n"), section or {})
    return plugin


class _Base:
    def __init__(self, node: Any, settings: Any) -> None:
        self.settings = settings


def test_an_unknown_hook_is_refused_with_the_one_that_was_meant() -> None:
    class Typo(_Base):
        @hookimpl
        def publish_device(self) -> list[Any]:
            return []

    assert "did you mean publish_devices?" in _start(Typo).reason


def test_an_argument_that_the_hook_does_not_have_is_refused() -> None:
    class Asks(_Base):
        @hookimpl
        def publish_devices(self, colour: str) -> list[Any]:
            return [colour]

    plugin = _start(Asks)

    assert plugin.reason == "publish_devices has no argument colour; it has no arguments"


def test_a_constructor_that_raises_refuses_its_plugin_alone() -> None:
    class Raises(_Base):
        def __init__(self, node: Any, settings: Any) -> None:
            raise KeyError("nope")

    assert _start(Raises).reason.startswith("its constructor raised KeyError")


def test_a_wrong_key_in_a_plugins_section_names_the_right_ones() -> None:
    from hardpoint.parameters import Settings as Base

    class Typed(_Base):
        class Settings(Base):
            disks: bool = False

    refused = _start(Typed, {"discs": True})
    running = _start(Typed, {"disks": True})

    assert refused.state == "refused"
    assert "discs" in refused.reason
    assert "the keys are disks" in refused.reason
    assert running.instance.settings.disks is True


def test_a_section_for_a_plugin_without_settings_is_refused() -> None:
    assert "takes no settings" in _start(_Base, {"x": 1}).reason


def test_a_wrapper_is_refused_since_plugins_do_not_wrap_each_other() -> None:
    import pluggy

    class Wraps(_Base):
        @pluggy.HookimplMarker("hardpoint")(wrapper=True)
        def publish_devices(self) -> Any:
            return (yield)

    assert "wrapper" in _start(Wraps).reason


@pytest.mark.parametrize(
    "source", ["raise SystemExit(1)", "raise KeyboardInterrupt", "assert False, 'no'"]
)
def test_an_import_that_would_end_the_program_refuses_its_plugin_alone(
    install: Any, source: str
) -> None:
    install("acme-exits", "exits", source=f"{source}\n")
    install("acme-fine", "fine")

    found = _drivers()

    assert found["exits"].state == "refused"
    assert found["exits"].reason.startswith("importing acme_exits:Good raised ")
    assert found["fine"].loaded is not None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_constructor_that_would_end_the_program_refuses_its_plugin_alone(
    error: type[BaseException],
) -> None:
    class Exits(_Base):
        def __init__(self, node: Any, settings: Any) -> None:
            raise error

    assert _start(Exits).reason == f"its constructor raised {error.__name__}"


def test_a_constructor_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardpoint._core.plugins.discovery.START_BUDGET", 0.05)
    over = threading.Event()

    class Hangs(_Base):
        def __init__(self, node: Any, settings: Any) -> None:
            over.wait()

    reason = _start(Hangs).reason
    over.set()

    assert reason == "its constructor raised TimeoutError: it has not returned within 0.05 s"


def test_an_attribute_that_has_every_attribute_is_no_hook() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self) -> None: ...

    class Holds(_Base):
        def __init__(self, node: Any, settings: Any) -> None:
            self.bus = Proxy()

        @hookimpl
        def publish_devices(self) -> list[Any]:
            return []

    assert _start(Holds).state == "running"


def test_parameters_that_are_no_model_refuse_their_driver_before_any_claim() -> None:
    class Loose(_Base):
        Parameters = dict

    assert "no subclass of hardpoint.Parameters" in _start(Loose).reason


def test_a_hook_that_is_not_marked_is_refused_rather_than_never_called() -> None:
    class Forgot(_Base):
        def publish_devices(self) -> list[Any]:
            return []

    assert _start(Forgot).reason == "publish_devices is a hook's name, and is not marked @hookimpl"


def test_sections_of_the_settings_that_are_for_nobody_are_named() -> None:
    plugins = [Plugin("driver", "usb"), Plugin("frontend", "dra")]

    said = list(unknown_sections(plugins, {"driver": ["ubs", "usb"], "names": ["usb", "nvidia"]}))

    assert said == [
        "[driver.ubs] is for no installed driver; installed: usb",
        "[names.nvidia] is for no installed driver; installed: usb",
    ]
