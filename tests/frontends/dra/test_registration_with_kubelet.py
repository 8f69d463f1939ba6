"""A driver is registered with the kubelet, and again whenever that is needed."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, running

from hardpoint.kubelet import pluginregistration_v1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import service_of
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.clock import ManualClock
from hardpoint.testing.kubelet import Behaviour, FakeKubelet
from hardpoint_dra.registration import Registration, State

FAULT = f"frontend/dra registration of {DRIVER}"
UID_A = "00000000-0000-4000-8000-00000000000a"
UID_B = "00000000-0000-4000-8000-00000000000b"


def _registration(agent: FakeAgent, **options: Any) -> Registration:
    return Registration(agent, DRIVER, [], **{"tick": 0.01, **options})


@asynccontextmanager
async def _kubelet(root: Path, **behaviour: Any) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(root / "kubelet", behaviour=Behaviour(**behaviour)) as kubelet:
        yield kubelet


def _said(agent: FakeAgent, words: str) -> bool:
    return any(words in said for said in agent.faults.get(FAULT, ()))


def _names(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root / "kubelet"))
        for path in (root / "kubelet").rglob("*")
        if path.is_socket()
    )


def _dead_socket(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


# -- registering ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "service"), [("1.33", "v1beta1.DRAPlugin"), ("1.37", "v1.DRAPlugin")]
)
async def test_a_driver_is_registered_under_the_newest_service_of_the_kubelet(
    short_path: Path, version: str, service: str
) -> None:
    agent, told = FakeAgent(short_path), anyio.Event()
    registration = _registration(agent, registered=told.set)
    async with _kubelet(short_path, version=version) as kubelet, running(registration.run):
        await kubelet.until_registered(DRIVER)
        with anyio.fail_after(5):
            await told.wait()

        (instance,) = kubelet.instances(DRIVER)
        assert instance.service == service
        assert registration.state is State.REGISTERED
        assert _names(short_path) == [
            f"plugins/{DRIVER}/dra.sock",
            f"plugins_registry/{DRIVER}-reg.sock",
        ]
    assert _names(short_path) == []
    assert kubelet.attempts[0].versions == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )


async def test_the_kubelet_may_come_later(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    async with running(_registration(agent).run):
        await agent.until(lambda: FAULT in agent.faults)
        assert "plugins_registry: is " in agent.faults[FAULT][0]
        async with _kubelet(short_path) as kubelet:
            await kubelet.until_registered(DRIVER)
            await agent.until(lambda: FAULT not in agent.faults)


@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.field_case("A02")
async def test_a_restarted_kubelet_finds_the_driver_again(short_path: Path, version: str) -> None:
    agent = FakeAgent(short_path)
    async with (
        _kubelet(short_path, version=version) as kubelet,
        running(_registration(agent).run),
    ):
        for times in range(1, 4):
            await kubelet.until_registered(DRIVER)
            await kubelet.until(lambda times=times: len(kubelet.attempts) == times)  # type: ignore[misc]
            await kubelet.restart()
        await kubelet.until_registered(DRIVER)

    assert all(one.registered for one in kubelet.attempts)
    assert agent.faults == {}


async def test_get_info_says_who_we_are_and_where_we_serve(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    async with _kubelet(short_path) as kubelet, running(_registration(agent).run):
        await kubelet.until_registered(DRIVER)
        path = short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock"
        async with Client(path) as client:
            service = service_of(pb, "Registration")
            info = await client.call(service, "GetInfo", pb.InfoRequest(), timeout_s=1)

    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(short_path / f"kubelet/plugins/{DRIVER}/dra.sock")


async def test_a_probe_that_asks_and_says_nothing_changes_nothing(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    registration = _registration(agent, silence=0.05)
    async with _kubelet(short_path) as kubelet, running(registration.run):
        await kubelet.until_registered(DRIVER)
        async with Client(short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock") as client:
            service = service_of(pb, "Registration")
            await client.call(service, "GetInfo", pb.InfoRequest(), timeout_s=1)

        assert registration.state is State.REGISTERED


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.field_case("A14", "B01")
async def test_a_kubelet_that_never_asks_is_named_and_the_socket_made_anew(
    short_path: Path,
) -> None:
    agent = FakeAgent(short_path)
    registration = _registration(agent, silence=0.05)
    path = short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock"
    async with _kubelet(short_path, asks_info=False) as kubelet, running(registration.run):
        await kubelet.until(lambda: path in kubelet.sockets)
        before = path.stat().st_ctime_ns
        await agent.until(lambda: len(agent.faults.get(FAULT, ())) >= 2)

        said = agent.faults[FAULT][0]
        assert f"kubelet has not called GetInfo on {path} for 0 s" in said
        assert f"is its root-dir {short_path}/kubelet?" in said
        await kubelet.until(lambda: path.exists() and path.stat().st_ctime_ns > before)
        kubelet.behaviour.asks_info = True
        await kubelet.until_registered(DRIVER)
        await agent.until(lambda: FAULT not in agent.faults)


@pytest.mark.field_case("A12", "A14")
async def test_a_driver_in_a_directory_that_no_kubelet_watches_stays_up_and_says_so(
    short_path: Path,
) -> None:
    """Both directories are there, as ``DirectoryOrCreate`` makes them; the kubelet has another."""
    agent, told = FakeAgent(short_path), anyio.Event()
    registry = short_path / "kubelet/plugins_registry"
    registry.mkdir(parents=True)
    registration = _registration(agent, silence=0.02, registered=told.set)
    async with FakeKubelet(short_path / "data/kubelet") as elsewhere, running(registration.run):
        await agent.until(lambda: len(agent.faults.get(FAULT, ())) >= 2)

        assert f"is its root-dir {short_path}/kubelet?" in agent.faults[FAULT][0]
        assert elsewhere.attempts == ()
        assert not told.is_set()
        async with _kubelet(short_path) as kubelet:
            await kubelet.until_registered(DRIVER)
            await agent.until(lambda: FAULT not in agent.faults)


@pytest.mark.parametrize("version", ["1.35", "1.37"])
async def test_a_refused_registration_is_said_and_tried_again_with_a_new_socket(
    short_path: Path, version: str
) -> None:
    """The kubelet knows none of our services at first; its own retries never come here."""
    agent = FakeAgent(short_path)
    registration = _registration(agent, silence=0.05, versions=["v9.DRAPlugin"])
    kubelet = FakeKubelet(
        short_path / "kubelet", behaviour=Behaviour(version=version, clock=ManualClock())
    )
    async with kubelet, running(registration.run):
        await agent.until(
            lambda: any(
                "none of services supported by the plugin" in said
                for said in agent.faults.get(FAULT, ())
            )
        )
        registration._versions = ("v1.DRAPlugin",)
        await kubelet.until_registered(DRIVER)
        await agent.until(lambda: FAULT not in agent.faults)


@pytest.mark.field_case("A13")
async def test_what_the_kubelet_says_against_the_driver_is_shown(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    registration = _registration(agent, silence=0.05)
    path = short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock"
    path.parent.mkdir(parents=True)
    service = service_of(pb, "Registration")
    async with running(registration.run):
        await agent.until(lambda: path.exists())
        async with Client(path) as client:
            status = pb.RegistrationStatus(plugin_registered=False, error="too old")
            await client.call(service, "NotifyRegistrationStatus", status, timeout_s=5)
        assert agent.faults[FAULT] == [f"the kubelet refused to register {DRIVER}: too old"]
        async with _kubelet(short_path) as kubelet:
            await kubelet.until_registered(DRIVER)
            await agent.until(lambda: FAULT not in agent.faults)


@pytest.mark.field_case("A03")
async def test_a_kubelet_that_asks_and_then_says_nothing_is_named(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    path = short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock"
    path.parent.mkdir(parents=True)
    async with running(_registration(agent, silence=0.05).run):
        async with Client(path) as client:
            while True:
                with anyio.move_on_after(5):
                    await client.channel.channel_ready()
                    break
            info = pb.InfoRequest()
            await client.call(service_of(pb, "Registration"), "GetInfo", info, timeout_s=5)
        await agent.until(lambda: _said(agent, "has not said whether"))


@pytest.mark.field_case("A03")
async def test_a_removed_registrar_is_put_back(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    async with _kubelet(short_path) as kubelet, running(_registration(agent).run):
        await kubelet.until_registered(DRIVER)

        (short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock").unlink()
        await kubelet.until(lambda: len(kubelet.attempts) == 2)

        await kubelet.until_registered(DRIVER)


@pytest.mark.field_case("A03")
async def test_a_removed_service_socket_is_put_back_and_registered_anew(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    async with _kubelet(short_path) as kubelet, running(_registration(agent).run):
        await kubelet.until_registered(DRIVER)

        (short_path / f"kubelet/plugins/{DRIVER}/dra.sock").unlink()
        await kubelet.until(lambda: len(kubelet.attempts) == 2)

        await kubelet.until_registered(DRIVER)
        assert len(_names(short_path)) == 2


@pytest.mark.field_case("A02", "A03")
@pytest.mark.parametrize("lost", ["plugins_registry", "plugins", "."])
async def test_a_kubelet_whose_directories_were_made_anew_finds_the_driver_again(
    short_path: Path, lost: str
) -> None:
    """As a kubelet that is reset and started again: nothing of ours is where it was."""
    agent, root = FakeAgent(short_path), short_path / "kubelet"
    async with _kubelet(short_path) as kubelet, running(_registration(agent).run):
        await kubelet.until_registered(DRIVER)
        await kubelet.stop()
        shutil.rmtree(root / lost)
        await kubelet.start()

        await kubelet.until_registered(DRIVER)
        await agent.until(lambda: FAULT not in agent.faults)
        assert len(_names(short_path)) == 2


@pytest.mark.field_case("A03")
@pytest.mark.parametrize("step", ["registrar", "service", "both"])
async def test_sockets_lost_before_the_kubelet_came_are_made_anew_for_it(
    short_path: Path, step: str
) -> None:
    agent, root = FakeAgent(short_path), short_path / "kubelet"
    (root / "plugins_registry").mkdir(parents=True)
    registrar, service = root / f"plugins_registry/{DRIVER}-reg.sock", root / f"plugins/{DRIVER}"
    async with running(_registration(agent).run):
        await agent.until(lambda: registrar.exists())
        if step in ("registrar", "both"):
            registrar.unlink()
        if step in ("service", "both"):
            (service / "dra.sock").unlink()
        async with _kubelet(short_path) as kubelet:
            await kubelet.until_registered(DRIVER)
            assert len(_names(short_path)) == 2


async def test_a_driver_name_that_is_too_long_for_a_socket_is_said(short_path: Path) -> None:
    agent = FakeAgent(short_path)
    name = "a" * 63
    root = short_path / ("x" * 40)
    agent.paths = type(agent.paths)(kubelet=root, cdi=agent.paths.cdi)
    (root / "plugins_registry").mkdir(parents=True)
    source = f"frontend/dra registration of {name}"
    async with running(Registration(agent, name, [], tick=0.01).run):
        await agent.until(lambda: source in agent.faults)

    assert "the most is 107: use a shorter driver name or kubelet root" in agent.faults[source][0]


# -- two instances --------------------------------------------------------------------------------


@pytest.mark.field_case("B01")
async def test_two_pods_of_a_rolling_update_serve_side_by_side(short_path: Path) -> None:
    old, new = FakeAgent(short_path, instance=UID_A), FakeAgent(short_path, instance=UID_B)
    async with _kubelet(short_path) as kubelet:
        async with running(_registration(old).run):
            await kubelet.until_registered(DRIVER)
            first = kubelet.instances(DRIVER)[0]
            async with running(_registration(new).run):
                await kubelet.until_registered(DRIVER, 2)
                assert kubelet.instances(DRIVER)[0] is first
            await kubelet.until_registered(DRIVER, 1)
        await kubelet.until_gone(DRIVER)

    assert _names(short_path) == []


async def test_an_update_never_leaves_the_kubelet_without_a_driver(short_path: Path) -> None:
    wiped: list[str | None] = []

    async def wipe(driver: str | None) -> None:
        wiped.append(driver)

    clock = ManualClock()
    kubelet = FakeKubelet(short_path / "kubelet", wipe=wipe, behaviour=Behaviour(clock=clock))
    async with kubelet, running(_registration(FakeAgent(short_path, instance=UID_B)).run):
        async with running(_registration(FakeAgent(short_path, instance=UID_A)).run):
            await kubelet.until_registered(DRIVER, 2)
        await kubelet.until_registered(DRIVER, 1)
        clock.advance(120)
        await anyio.wait_all_tasks_blocked()

        assert wiped == [None]


async def test_the_survivor_registers_again_when_it_becomes_the_writer(short_path: Path) -> None:
    agent = FakeAgent(short_path, instance=UID_B, writing=False)
    async with _kubelet(short_path) as kubelet, running(_registration(agent).run):
        await kubelet.until_registered(DRIVER)
        first = kubelet.instances(DRIVER)

        agent.become_writer()
        await kubelet.until(lambda: len(kubelet.attempts) == 2)
        await kubelet.until_registered(DRIVER)

        assert kubelet.instances(DRIVER) != first


async def test_two_agents_without_instance_names_do_not_steal_from_each_other(
    short_path: Path,
) -> None:
    first, second = FakeAgent(short_path), FakeAgent(short_path)
    async with _kubelet(short_path) as kubelet, anyio.create_task_group() as tasks:
        async with running(_registration(first).run):
            await kubelet.until_registered(DRIVER)
            tasks.start_soon(_registration(second).run)
            await second.until(lambda: FAULT in second.faults)
            assert "another process serves" in second.faults[FAULT][0]
            assert len(kubelet.attempts) == 1
        await kubelet.until(lambda: len(kubelet.attempts) == 2)
        await second.until(lambda: FAULT not in second.faults)
        tasks.cancel_scope.cancel()


# -- killed instances -----------------------------------------------------------------------------


@pytest.mark.field_case("B02")
async def test_sockets_of_killed_instances_go_and_live_ones_stay(short_path: Path) -> None:
    root = short_path / "kubelet"
    registry, plugin = root / "plugins_registry", root / "plugins" / DRIVER
    stale = [
        _dead_socket(registry / f"{DRIVER}-reg.sock"),
        _dead_socket(registry / f"{DRIVER}-{UID_A}-reg.sock"),
        _dead_socket(plugin / "dra.sock"),
        _dead_socket(plugin / f"dra-{UID_A}.sock"),
    ]
    foreign = [
        _dead_socket(registry / "other.example.com-reg.sock"),
        _dead_socket(registry / f"{DRIVER}-x.example.com-reg.sock"),
        _dead_socket(root / "plugins/other.example.com/dra.sock"),
    ]
    agent = FakeAgent(short_path, instance=UID_B)
    live = SocketServer(registry / f"{DRIVER}-{UID_B.replace('b', 'c')}-reg.sock", [])
    async with live, running(_registration(agent).run):
        await agent.until(lambda: FAULT in agent.notes)

        assert [path for path in stale if os.path.lexists(path)] == []
        assert all(os.path.lexists(path) for path in foreign)
        assert live.is_ours()


@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.field_case("B01", "B02")
async def test_after_a_kill_the_same_name_is_registered_again(
    short_path: Path, version: str
) -> None:
    """The dead socket is asked in vain; its successor takes the name by a rename."""
    path = _dead_socket(short_path / f"kubelet/plugins_registry/{DRIVER}-reg.sock")
    clock = ManualClock()
    async with _kubelet(short_path, version=version, clock=clock) as kubelet:
        await kubelet.until(lambda: len(kubelet.attempts) == 1)
        assert kubelet.attempts[0].path == str(path)
        assert "UNAVAILABLE" in kubelet.attempts[0].error
        async with running(_registration(FakeAgent(short_path)).run):
            await kubelet.until_registered(DRIVER)


@pytest.mark.parametrize(("length", "driver"), [(30, DRIVER), (5, "d" * 45), (5, "d" * 58)])
async def test_a_killed_instance_with_shortened_names_is_found_too(
    short_path: Path, length: int, driver: str
) -> None:
    from hardpoint_dra.names import Directories

    root = short_path / ("k" * length)
    names = Directories(root, driver)
    (root / "plugins_registry").mkdir(parents=True)
    (root / "plugins" / driver).mkdir(parents=True)
    _dead_socket(names.service(UID_A))
    registrar = _dead_socket(names.registrar(UID_A))
    assert UID_A not in registrar.name

    assert set(names.remove_stale(UID_B)) == {names.service(UID_A), registrar}
