"""The fake kubelet refuses what the real one refuses, and waits as long."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint.kubelet import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)
from hardpoint.kubelet import pluginregistration_v1_pb2 as reg
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of
from hardpoint.testing.cdi import UnresolvableDevice
from hardpoint.testing.clock import ManualClock
from hardpoint.testing.kubelet import Behaviour, FakeKubelet, Pod, PodFailed, Report

DRIVER = "gpu.example.com"
ALL = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
POD = Pod(name="train", claims=("gpu",))


def claim(name: str = "gpu", uid: str = "1", *pods: Pod, driver: str = DRIVER) -> dict[str, Any]:
    reserved = [{"resource": "pods", "uid": pod.identity} for pod in pods or (POD,)]
    result = {"request": "r", "driver": driver, "pool": "n", "device": "d"}
    allocation = {"devices": {"results": [result]}}
    return {
        "metadata": {"name": name, "uid": uid},
        "status": {"allocation": allocation, "reservedFor": reserved},
    }


class Claims(dict[str, Any]):
    """An API server that has only claims."""

    async def get_claim(self, namespace: str, name: str) -> Any:
        return self.get(name)


class Driver:
    """A driver in a few lines, which a test bends."""

    def __init__(self, root: Path, name: str = DRIVER, *, tag: str = "") -> None:
        self.endpoint = root / "plugins" / name / f"dra{tag}.sock"
        self.path = root / "plugins_registry" / f"{name}{tag}-reg.sock"
        self.info = reg.PluginInfo(
            type="DRAPlugin", name=name, endpoint=str(self.endpoint), supported_versions=ALL
        )
        self.statuses: list[reg.RegistrationStatus] = []
        self.calls: list[tuple[str, list[str]]] = []
        self.answer: Callable[[Any, Any], Any] = _answer
        self.health: Any = None
        self.deny_notify = False
        self.service = SocketServer(self.endpoint, self._handlers(), grace=0.1)
        self.registrar = SocketServer(
            self.path,
            [
                serve(
                    service_of(reg, "Registration"),
                    {"GetInfo": self._info, "NotifyRegistrationStatus": self._notify},
                )
            ],
        )

    def _handlers(self) -> list[Any]:
        handlers = [
            serve(
                service_of(messages, "DRAPlugin"),
                {
                    "NodePrepareResources": self._call("prepare", messages),
                    "NodeUnprepareResources": self._call("unprepare", messages),
                },
            )
            for messages in (dra_v1_pb2, dra_v1beta1_pb2)
        ]
        for messages in (dra_health_v1_pb2, dra_health_v1alpha1_pb2):
            service = service_of(messages, "DRAResourceHealth")
            handlers.append(serve(service, {"NodeWatchResources": self._watch}))
        return handlers

    async def _info(self, request: reg.InfoRequest) -> reg.PluginInfo:
        return self.info

    async def _notify(self, status: reg.RegistrationStatus) -> reg.RegistrationStatusResponse:
        self.statuses.append(status)
        if self.deny_notify:
            raise Status("UNAVAILABLE", "busy")
        return reg.RegistrationStatusResponse()

    def _call(self, word: str, messages: Any) -> Any:
        async def call(request: Any) -> Any:
            self.calls.append((word, [one.uid for one in request.claims]))
            return self.answer(messages, request)

        return call

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        if self.health is None:
            raise Status("UNIMPLEMENTED", "no health")
        async for response in self.health():
            yield response

    async def __aenter__(self) -> Driver:
        self.endpoint.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        await self.service.start()
        await self.registrar.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.registrar.close()
        await self.service.close()


def _answer(messages: Any, request: Any) -> Any:
    if "Unprepare" in type(request).__name__:
        entries = {one.uid: messages.NodeUnprepareResourceResponse() for one in request.claims}
        return messages.NodeUnprepareResourcesResponse(claims=entries)
    device = messages.Device(request_names=["r"], pool_name="n", device_name="d")
    device.cdi_device_ids.append("example.com/gpu=d")
    if "share_id" in messages.Device.DESCRIPTOR.fields_by_name:
        device.share_id = "s"
    entry = messages.NodePrepareResourceResponse(devices=[device])
    entries = dict.fromkeys((one.uid for one in request.claims), entry)
    return messages.NodePrepareResourcesResponse(claims=entries)


# -- registration ---------------------------------------------------------------------------------


async def test_a_driver_is_registered_and_told_so(short_path: Path) -> None:
    async with FakeKubelet(short_path) as kubelet, Driver(short_path) as driver:
        await kubelet.until_registered(DRIVER)

        (instance,) = kubelet.instances(DRIVER)
        assert instance.service == "v1.DRAPlugin"
        assert instance.health_service == "v1.DRAResourceHealth"
        assert [status.plugin_registered for status in driver.statuses] == [True]


@pytest.mark.parametrize(
    ("version", "service", "health"),
    [
        ("1.33", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        ("1.34", "v1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        ("1.36", "v1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        ("1.37", "v1.DRAPlugin", "v1.DRAResourceHealth"),
    ],
)
async def test_a_kubelet_uses_the_first_service_that_its_version_knows(
    short_path: Path, version: str, service: str, health: str
) -> None:
    behaviour = Behaviour(version=version)
    async with FakeKubelet(short_path, behaviour=behaviour) as kubelet, Driver(short_path):
        await kubelet.until_registered(DRIVER)

        (instance,) = kubelet.instances(DRIVER)
        assert (instance.service, instance.health_service) == (service, health)


async def test_the_order_of_the_plugins_list_decides(short_path: Path) -> None:
    driver = Driver(short_path)
    driver.info.supported_versions[:] = reversed(ALL)
    async with FakeKubelet(short_path) as kubelet, driver:
        await kubelet.until_registered(DRIVER)

        assert kubelet.instances(DRIVER)[0].service == "v1beta1.DRAPlugin"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"type": "CarPlugin"}, "no handler registered for plugin type: CarPlugin at socket"),
        ({"supported_versions": ["1.0.0"]}, "none of services supported by the plugin"),
        ({"supported_versions": []}, "empty list of supported gRPC services"),
        ({"endpoint": "/" + "x" * 107}, "108 bytes"),
    ],
)
async def test_a_wrong_plugin_is_refused_and_told_why(
    short_path: Path, changes: dict[str, Any], why: str
) -> None:
    driver = Driver(short_path)
    for field, value in changes.items():
        if field == "supported_versions":
            driver.info.supported_versions[:] = value
        else:
            setattr(driver.info, field, value)
    async with FakeKubelet(short_path) as kubelet, driver:
        await kubelet.until(lambda: bool(kubelet.attempts))

        assert not driver.statuses[0].plugin_registered
        assert why in driver.statuses[0].error
        assert kubelet.instances(driver.info.name) == ()


async def test_dot_files_and_other_files_are_not_asked(short_path: Path) -> None:
    registry = short_path / "plugins_registry"
    registry.mkdir()
    (registry / "note.sock").write_text("no socket")
    with socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(str(registry / ".hidden.sock"))
        async with FakeKubelet(short_path) as kubelet, Driver(short_path):
            await kubelet.until_registered(DRIVER)

            assert [Path(one.path).name for one in kubelet.attempts] == [f"{DRIVER}-reg.sock"]


async def test_a_socket_that_does_not_answer_is_asked_again_later(short_path: Path) -> None:
    clock = ManualClock()
    behaviour = Behaviour(clock=clock, version="1.34", get_info_timeout=0.05)
    driver = Driver(short_path)
    driver.path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(driver.path))
        deaf.listen()
        async with FakeKubelet(short_path, behaviour=behaviour) as kubelet:
            await kubelet.until(lambda: len(kubelet.attempts) == 1)
            clock.advance(0.5)
            await kubelet.until(lambda: len(kubelet.attempts) == 2)

    assert "DEADLINE_EXCEEDED" in kubelet.attempts[0].error


async def test_two_sockets_with_one_endpoint_are_one_too_many(short_path: Path) -> None:
    first, second = Driver(short_path), Driver(short_path, tag="-2")
    second.info.endpoint = first.info.endpoint
    async with FakeKubelet(short_path) as kubelet, first:
        await kubelet.until_registered(DRIVER)
        async with second:
            await kubelet.until(lambda: len(kubelet.attempts) == 2)

            assert "already registered" in second.statuses[0].error
            assert len(kubelet.instances(DRIVER)) == 1


@pytest.mark.parametrize(("version", "asked"), [("1.35", 1), ("1.36", 2)])
async def test_a_failed_registration_is_repeated_only_since_1_36(
    short_path: Path, version: str, asked: int
) -> None:
    clock = ManualClock()
    driver = Driver(short_path)
    driver.deny_notify = True
    behaviour = Behaviour(clock=clock, version=version)
    async with FakeKubelet(short_path, behaviour=behaviour) as kubelet, driver:
        await kubelet.until(lambda: len(kubelet.attempts) == 1)
        driver.deny_notify = False
        async with Driver(short_path, "other.example.com"):
            await kubelet.until_registered("other.example.com")
            clock.advance(0.5)
            await kubelet.until_registered(DRIVER)

            assert len(driver.statuses) == asked


async def test_a_new_socket_at_the_same_path_is_registered_anew(short_path: Path) -> None:
    async with FakeKubelet(short_path) as kubelet, Driver(short_path) as driver:
        await kubelet.until_registered(DRIVER)
        first = kubelet.instances(DRIVER)

        await driver.registrar.renew()
        await kubelet.until(lambda: len(driver.statuses) == 2)
        await kubelet.until_registered(DRIVER)

        assert kubelet.instances(DRIVER) != first


async def test_a_removed_socket_is_deregistered(short_path: Path) -> None:
    async with FakeKubelet(short_path) as kubelet, Driver(short_path) as driver:
        await kubelet.until_registered(DRIVER)

        await driver.registrar.close()

        await kubelet.until_gone(DRIVER)


async def test_a_kubelet_of_another_root_never_asks(short_path: Path) -> None:
    behaviour = Behaviour(asks_info=False)
    async with (
        FakeKubelet(short_path, behaviour=behaviour) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until(lambda: kubelet.sockets == (driver.path,))
        await anyio.wait_all_tasks_blocked()

        assert kubelet.attempts == ()
        assert driver.statuses == []


async def test_a_restarted_kubelet_asks_every_socket_again(short_path: Path) -> None:
    async with FakeKubelet(short_path) as kubelet, Driver(short_path) as driver:
        await kubelet.until(lambda: _told(kubelet) == 1)

        await kubelet.restart()
        await kubelet.until(lambda: _told(kubelet) == 2)

        assert [status.plugin_registered for status in driver.statuses] == [True, True]


def _told(kubelet: FakeKubelet) -> int:
    return sum(attempt.registered for attempt in kubelet.attempts)


# -- connection and slices ------------------------------------------------------------------------


async def test_slices_are_wiped_at_start_and_30_s_after_a_driver_is_gone(short_path: Path) -> None:
    wiped: list[str | None] = []
    clock = ManualClock()

    async def wipe(driver: str | None) -> None:
        wiped.append(driver)
        kubelet.behaviour.changed()

    kubelet = FakeKubelet(short_path, wipe=wipe, behaviour=Behaviour(clock=clock))
    async with kubelet:
        await kubelet.until(lambda: wiped == [None])
        async with Driver(short_path):
            await kubelet.until_registered(DRIVER)
        await kubelet.until_gone(DRIVER)
        clock.advance(29)
        async with Driver(short_path):
            await kubelet.until_registered(DRIVER)
            clock.advance(2)
        await kubelet.until_gone(DRIVER)
        assert wiped == [None]
        clock.advance(29)
        await anyio.wait_all_tasks_blocked()
        assert wiped == [None]
        clock.advance(1)

        await kubelet.until(lambda: wiped == [None, DRIVER])


async def test_a_wipe_that_fails_is_repeated(short_path: Path) -> None:
    clock = ManualClock()
    tried = [0]

    async def wipe(driver: str | None) -> None:
        tried[0] += 1
        kubelet.behaviour.changed()
        if tried[0] < 3:
            raise OSError("API server is down")

    kubelet = FakeKubelet(short_path, wipe=wipe, behaviour=Behaviour(clock=clock))
    async with kubelet:
        for times, wait in ((1, 1), (2, 2)):
            await kubelet.until(lambda times=times: tried[0] == times)  # type: ignore[misc]
            await anyio.wait_all_tasks_blocked()
            clock.advance(wait)
        await kubelet.until(lambda: tried[0] == 3)


async def test_a_lost_connection_is_noticed_without_a_removed_socket(short_path: Path) -> None:
    async with FakeKubelet(short_path) as kubelet, Driver(short_path) as driver:
        await kubelet.until_registered(DRIVER)

        await driver.service.close()
        await kubelet.until(lambda: not kubelet.instances(DRIVER)[0].connected)
        await driver.service.start()

        await kubelet.until_registered(DRIVER)


async def test_the_newest_connected_instance_is_called(short_path: Path) -> None:
    claims = Claims(gpu=claim())
    old, new = Driver(short_path, tag="-a"), Driver(short_path, tag="-b")
    async with FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet, old:
        await kubelet.until_registered(DRIVER)
        async with new:
            await kubelet.until_registered(DRIVER, 2)
            await kubelet.prepare(POD)
            await new.service.close()
            await kubelet.until_registered(DRIVER)
            await kubelet.unprepare(POD)

    assert (old.calls, new.calls) == ([("unprepare", ["1"])], [("prepare", ["1"])])


# -- claims ---------------------------------------------------------------------------------------


async def test_a_claim_is_prepared_once_for_all_its_pods(short_path: Path) -> None:
    other = Pod(name="other", claims=("gpu",))
    claims = Claims(gpu=claim("gpu", "1", POD, other))
    async with (
        FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until_registered(DRIVER)
        (first,) = await kubelet.prepare(POD)
        assert await kubelet.prepare(other) == (first,)
        await kubelet.unprepare(POD)
        assert driver.calls == [("prepare", ["1"])]
        await kubelet.unprepare(other)
        await kubelet.unprepare(other)

    assert (first.requests, first.cdi_ids, first.share_id) == (("r",), ("example.com/gpu=d",), "s")
    assert driver.calls == [("prepare", ["1"]), ("unprepare", ["1"])]


async def test_a_pods_claims_go_to_a_driver_in_one_call(short_path: Path) -> None:
    pod = Pod(name="two", claims=("a", "b"))
    claims = Claims(a=claim("a", "1", pod), b=claim("b", "2", pod))
    async with (
        FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until_registered(DRIVER)
        await kubelet.prepare(pod)

    assert driver.calls == [("prepare", ["1", "2"])]


async def test_a_kubelet_that_lost_its_checkpoint_prepares_again(short_path: Path) -> None:
    claims = Claims(gpu=claim())
    async with (
        FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until_registered(DRIVER)
        await kubelet.prepare(POD)
        await kubelet.restart(forget=True)
        await kubelet.until_registered(DRIVER)
        await kubelet.prepare(POD)

    assert driver.calls == [("prepare", ["1"])] * 2


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "not found"),
        (
            {"metadata": {"uid": "1"}, "status": {"reservedFor": [{"uid": POD.identity}]}},
            "ResourceClaim gpu: not allocated",
        ),
        (claim("gpu", "1", Pod(name="x", claims=())), "not allowed to use ResourceClaim gpu"),
        (claim(driver="other.example.com"), r"DRA driver other\.example\.com is not registered"),
    ],
)
async def test_a_claim_that_is_not_for_the_pod_is_refused(
    short_path: Path, found: Any, why: str
) -> None:
    claims = Claims(gpu=found)
    async with (
        FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until_registered(DRIVER)
        with pytest.raises(PodFailed, match=why):
            await kubelet.prepare(POD)

    assert driver.calls == []


async def test_a_new_claim_under_an_old_name_waits_for_the_end_of_the_old(short_path: Path) -> None:
    claims = Claims(gpu=claim())
    async with FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet, Driver(short_path):
        await kubelet.until_registered(DRIVER)
        await kubelet.prepare(POD)
        claims["gpu"] = claim(uid="2")
        with pytest.raises(PodFailed, match="different UID 1 still exists"):
            await kubelet.prepare(POD)
        await kubelet.unprepare(POD)

        assert await kubelet.prepare(POD)


def _with(change: Callable[[Any], None]) -> Callable[[Any, Any], Any]:
    def answer(messages: Any, request: Any) -> Any:
        response = _answer(messages, request)
        change(response.claims)
        return response

    return answer


def _error(entries: Any) -> None:
    entries["1"].error = "no such device"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda entries: entries.pop("1"), "skipped 1 ResourceClaims"),
        (lambda entries: entries["2"], "unknown claim UID 2"),
        (_error, "failed for ResourceClaim gpu: no such device"),
    ],
)
async def test_a_wrong_answer_fails_the_pod(
    short_path: Path, change: Callable[[Any], None], why: str
) -> None:
    claims = Claims(gpu=claim())
    async with (
        FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet,
        Driver(short_path) as driver,
    ):
        await kubelet.until_registered(DRIVER)
        driver.answer = _with(change)
        with pytest.raises(PodFailed, match=why):
            await kubelet.prepare(POD)
        with pytest.raises(PodFailed, match=why):
            await kubelet.unprepare(POD)
        driver.answer = _answer
        await kubelet.unprepare(POD)

    assert driver.calls == [("prepare", ["1"]), ("unprepare", ["1"]), ("unprepare", ["1"])]


async def test_nothing_is_unprepared_while_the_driver_is_away(short_path: Path) -> None:
    claims = Claims(gpu=claim())
    async with FakeKubelet(short_path, get_claim=claims.get_claim) as kubelet:
        async with Driver(short_path):
            await kubelet.until_registered(DRIVER)
            await kubelet.prepare(POD)
        await kubelet.until_gone(DRIVER)

        with pytest.raises(PodFailed, match="not registered"):
            await kubelet.prepare(POD)
        with pytest.raises(PodFailed, match="not registered"):
            await kubelet.unprepare(POD)


@pytest.mark.parametrize(("version", "share_id"), [("1.34", ""), ("1.35", "s")])
async def test_share_ids_are_known_since_1_35(
    short_path: Path, version: str, share_id: str
) -> None:
    claims = Claims(gpu=claim())
    behaviour = Behaviour(version=version)
    kubelet = FakeKubelet(short_path, get_claim=claims.get_claim, behaviour=behaviour)
    async with kubelet, Driver(short_path):
        await kubelet.until_registered(DRIVER)
        (device,) = await kubelet.prepare(POD)

    assert device.share_id == share_id


async def test_a_container_gets_the_devices_of_the_request_it_names(short_path: Path) -> None:
    claims = Claims(gpu=claim())
    edits = {"env": ["GPU=d"]}
    spec = {
        "cdiVersion": "0.3.0",
        "kind": "example.com/gpu",
        "devices": [{"name": "d", "containerEdits": edits}],
    }
    cdi = short_path / "cdi"
    cdi.mkdir()
    kubelet = FakeKubelet(short_path, get_claim=claims.get_claim, cdi=[cdi])
    async with kubelet, Driver(short_path):
        await kubelet.until_registered(DRIVER)
        await kubelet.prepare(POD)
        with pytest.raises(UnresolvableDevice):
            kubelet.inject(POD)
        (cdi / "x.json").write_text(json.dumps(spec))

        assert kubelet.inject(POD, "r").env == ("GPU=d",)
        assert kubelet.inject(POD, "other").env == ()


# -- health ---------------------------------------------------------------------------------------


def _report(health: int, message: str = "", timeout_s: int = 0) -> Any:
    pb = dra_health_v1_pb2
    device = pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name="n", device_name="d"),
        health=pb.HealthStatus.Name(health),
        message=message,
        health_check_timeout_seconds=timeout_s,
    )
    return pb.NodeWatchResourcesResponse(devices=[device])


async def test_health_holds_30_s_or_as_long_as_the_driver_says(short_path: Path) -> None:
    clock = ManualClock()
    send, receive = anyio.create_memory_object_stream[Any](10)
    driver = Driver(short_path)
    driver.health = lambda: receive
    kubelet = FakeKubelet(short_path, behaviour=Behaviour(clock=clock))
    async with kubelet, driver, send, receive:
        await send.send(_report(2, "x" * 2000))
        await kubelet.until(lambda: kubelet.health_reports.received == 1)
        told = kubelet.health(DRIVER, "n", "d")
        assert (told.health, len(told.message), told.message[-4:]) == ("Unhealthy", 1024, "x...")
        clock.advance(29)
        assert kubelet.health(DRIVER, "n", "d") == told
        clock.advance(1)
        assert kubelet.health(DRIVER, "n", "d") == Report("Unknown")
        await send.send(_report(1, timeout_s=60))
        await kubelet.until(lambda: kubelet.health_reports.received == 2)
        clock.advance(59)

        assert kubelet.health(DRIVER, "n", "d") == Report("Healthy")


async def test_a_stream_that_ends_clears_what_it_said_and_is_opened_again(short_path: Path) -> None:
    clock = ManualClock()
    driver = Driver(short_path)

    async def once() -> AsyncIterator[Any]:
        yield _report(1)

    driver.health = once
    async with FakeKubelet(short_path, behaviour=Behaviour(clock=clock)) as kubelet, driver:
        await kubelet.until(lambda: kubelet.health_reports.received == 1)
        await kubelet.until(lambda: kubelet.health(DRIVER, "n", "d") == Report("Unknown"))
        await anyio.wait_all_tasks_blocked()
        clock.advance(5)

        await kubelet.until(lambda: kubelet.health_reports.received == 2)


async def test_a_driver_without_health_is_not_asked_again(short_path: Path) -> None:
    clock = ManualClock()
    async with (
        FakeKubelet(short_path, behaviour=Behaviour(clock=clock)) as kubelet,
        Driver(short_path),
    ):
        await kubelet.until_registered(DRIVER)
        clock.advance(5)

        assert kubelet.health(DRIVER, "n", "d") == Report("Unknown")
