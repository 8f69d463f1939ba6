"""What a kubelet does with DRA plugins and pods: true of the real one, and so of ours.

``node`` is either of the two (``nodes.py``): a kubelet, an API server with claims and slices, and
pods that are started again and again until they run.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest
from conformance.plugin import SERVICES, Plugin, failing, forgetting, inventing, refusing


class Node(Protocol):
    """A node of a cluster."""

    def name(self, word: str) -> str:
        """Return a name that nobody else has."""

    def plugin(self, name: str = "", *, tag: str = "") -> Plugin:
        """Return a plugin in this node's directories, not yet started."""

    def offer(self, *plugins: Plugin) -> AbstractAsyncContextManager[None]:
        """Have a slice of each plugin's on the API server; taken away in the end."""

    async def has_slice(self, plugin: Plugin) -> bool: ...

    async def until_wiped(self, plugin: Plugin) -> None: ...

    async def start(self, pod: str, *claims: str, of: tuple[Plugin, ...]) -> None:
        """Start a pod with claims, which are made first; each has a device of every plugin."""

    async def uid(self, claim: str) -> str: ...

    async def until_runs(self, pod: str) -> None: ...

    async def until_says(self, pod: str, sentence: str) -> None: ...

    async def health(self, pod: str, word: str) -> str:
        """Wait until the pod's status shows this health; return the message beside it."""

    async def end(self, pod: str) -> None:
        """Begin to end a pod."""

    async def until_gone(self, pod: str) -> None: ...

    async def is_there(self, pod: str) -> bool: ...

    async def restart(self) -> None:
        """Restart the kubelet."""


class Registration:
    """How a plugin becomes known."""

    async def test_a_plugin_is_asked_and_then_told(self, node: Node) -> None:
        async with node.plugin() as plugin:
            await plugin.until_told()

            assert plugin.calls[:2] == [("info",), ("told", True, "")]

    @pytest.mark.parametrize("name", ["Upper.Example.com", "no_domain"])
    async def test_a_name_is_not_looked_at(self, node: Node, name: str) -> None:
        async with node.plugin(f"{name}{node.name('')}") as plugin:
            await plugin.until_told()

    async def test_an_unknown_type_is_refused_and_asked_again(self, node: Node) -> None:
        plugin = node.plugin()
        plugin.info.type = "CarPlugin"
        async with plugin:
            await plugin.until_told(registered=False, times=2)

        why = "no handler registered for plugin type: CarPlugin at socket "
        assert plugin.of("told")[0][2].startswith(f"RegisterPlugin error -- {why}")

    @pytest.mark.parametrize(
        ("versions", "why"),
        [
            ([], "empty list of supported gRPC services (aka supported versions)"),
            (
                ["1.0.0", "v9.DRAPlugin"],
                (
                    'none of services supported by the plugin (["1.0.0" "v9.DRAPlugin"]) are '
                    'supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
                ),
            ),
        ],
    )
    async def test_unknown_services_are_refused(
        self, node: Node, versions: list[str], why: str
    ) -> None:
        plugin = node.plugin()
        plugin.info.supported_versions[:] = versions
        async with plugin:
            await plugin.until_told(registered=False, times=2)

        assert plugin.of("told")[0][2] == (
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC "
            f"versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: {why}"
        )

    async def test_an_endpoint_is_registered_once(self, node: Node) -> None:
        first, second = node.plugin(), None
        async with first:
            await first.until_told()
            second = node.plugin(first.name, tag="-b")
            second.info.endpoint = first.info.endpoint
            async with second:
                await second.until_told(registered=False)

        assert second.of("told")[0][2].endswith(
            f"endpoint {first.endpoint} already registered for DRA driver plugin {first.name}"
        )

    async def test_who_answers_late_is_asked_again(self, node: Node) -> None:
        plugin = node.plugin()
        plugin.slow_info = 1.5
        async with plugin:
            await plugin.until_told()

        assert plugin.calls == [("info",), ("info",), ("told", True, "")]

    async def test_a_restarted_kubelet_asks_again(self, node: Node) -> None:
        async with node.plugin() as plugin:
            await plugin.until_told()
            await node.restart()
            await plugin.until_told(times=2)

    async def test_a_new_socket_is_a_new_registration(self, node: Node) -> None:
        async with node.plugin() as plugin:
            await plugin.until_told()
            await plugin.leave()
            await plugin.come_back()
            await plugin.until_told(times=2)

    async def test_the_plugins_order_decides_over_the_service(self, node: Node) -> None:
        plugin = node.plugin()
        plugin.info.supported_versions[:] = reversed(SERVICES)
        async with plugin, node.offer(plugin):
            await plugin.until_told()
            pod, claim = node.name("pod"), node.name("gpu")
            await node.start(pod, claim, of=(plugin,))
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

        assert plugin.versions == ["v1beta1"]


class Wiping:
    """When slices are deleted."""

    async def test_slices_are_wiped_when_the_kubelet_starts(self, node: Node) -> None:
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            assert await node.has_slice(plugin)
            await node.restart()
            await node.until_wiped(plugin)

    async def test_slices_are_wiped_a_while_after_their_driver_left(self, node: Node) -> None:
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await plugin.leave()
            assert await node.has_slice(plugin)
            await node.until_wiped(plugin)


class Claims:
    """Which calls a pod's claims make, and what comes of the answers."""

    async def test_a_pods_claims_come_in_one_call(self, node: Node) -> None:
        pod, one, two = node.name("pod"), node.name("one"), node.name("two")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await node.start(pod, one, two, of=(plugin,))
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

        (prepare, unprepare) = plugin.of("prepare", "unprepare")
        assert prepare == ("prepare", [one, two])
        assert (unprepare[0], sorted(unprepare[1])) == ("unprepare", sorted([one, two]))
        assert plugin.versions == ["v1"]

    async def test_a_claim_is_prepared_once_and_ends_with_its_last_pod(self, node: Node) -> None:
        first, second, claim = node.name("first"), node.name("second"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await node.start(first, claim, of=(plugin,))
            await node.until_runs(first)
            await node.start(second, claim, of=(plugin,))
            await node.until_runs(second)
            await node.end(first)
            await node.until_gone(first)
            assert plugin.of("prepare", "unprepare") == [("prepare", [claim])]
            await node.end(second)
            await node.until_gone(second)

        assert plugin.of("prepare", "unprepare") == [("prepare", [claim]), ("unprepare", [claim])]

    @pytest.mark.parametrize(
        ("bend", "why"),
        [
            (refusing("UNAVAILABLE", "busy"), "rpc error: code = Unavailable desc = busy"),
            (forgetting, "NodePrepareResources skipped 1 ResourceClaims"),
            (
                inventing,
                "returned result for unknown claim UID 00000000-0000-0000-0000-00000000000f",
            ),
        ],
        ids=["status", "missing", "unasked"],
    )
    async def test_after_a_wrong_answer_a_claim_is_asked_for_again(
        self, node: Node, bend: object, why: str
    ) -> None:
        pod, claim = node.name("pod"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            plugin.bend["prepare"] = bend  # type: ignore[assignment]
            await node.start(pod, claim, of=(plugin,))
            await node.until_says(pod, why)
            plugin.bend.clear()
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

        assert plugin.of("prepare")[:2] == [("prepare", [claim])] * 2
        assert plugin.of("unprepare") == [("unprepare", [claim])]

    async def test_one_claims_error_lets_all_be_asked_for_again(self, node: Node) -> None:
        pod, good, bad = node.name("pod"), node.name("good"), node.name("bad")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()

            def bend(entries: object) -> None:
                failing(uids[0])(entries)

            uids = [""]
            plugin.bend["prepare"] = bend
            await node.start(pod, good, bad, of=(plugin,))
            uids[0] = await node.uid(bad)
            await node.until_says(pod, f"failed for ResourceClaim {bad}: no such device")
            plugin.bend.clear()
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

        assert {tuple(call[1]) for call in plugin.of("prepare")} == {(good, bad)}

    async def test_if_one_driver_fails_both_are_called_again(self, node: Node) -> None:
        pod, claim = node.name("pod"), node.name("gpu")
        async with node.plugin() as good, node.plugin() as bad, node.offer(good, bad):
            await good.until_told()
            await bad.until_told()
            bad.bend["prepare"] = failing()
            await node.start(pod, claim, of=(good, bad))
            await node.until_says(pod, "no such device")
            before = len(good.of("prepare"))
            bad.bend.clear()
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

        assert len(good.of("prepare")) == before + 1
        assert good.of("unprepare") == bad.of("unprepare") == [("unprepare", [claim])]

    async def test_without_its_driver_a_pod_waits(self, node: Node) -> None:
        pod, claim = node.name("pod"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await plugin.stop()
            await node.start(pod, claim, of=(plugin,))
            await node.until_says(pod, f"DRA driver {plugin.name} is not registered")
            await plugin.start()
            await node.until_runs(pod)
            await node.end(pod)
            await node.until_gone(pod)

    async def test_a_pod_stays_until_its_claims_are_unprepared(self, node: Node) -> None:
        pod, late, claim = node.name("pod"), node.name("late"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await node.start(pod, claim, of=(plugin,))
            await node.until_runs(pod)
            plugin.bend["unprepare"] = failing(error="busy")
            await node.end(pod)
            await plugin.until(lambda: len(plugin.of("unprepare")) >= 2)
            assert await node.is_there(pod)
            await node.start(late, claim, of=(plugin,))
            await node.until_says(late, f"ResourceClaim {claim} is being unprepared")
            plugin.bend.clear()
            await node.until_gone(pod)
            await node.until_runs(late)
            await node.end(late)
            await node.until_gone(late)

        assert plugin.of("prepare") == [("prepare", [claim])] * 2

    async def test_a_restarted_kubelet_asks_for_a_claim_with_its_next_pod(self, node: Node) -> None:
        first, second, claim = node.name("first"), node.name("second"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            await node.start(first, claim, of=(plugin,))
            await node.until_runs(first)
            await node.restart()
            await plugin.until_told(times=2)
            assert plugin.of("prepare") == [("prepare", [claim])]
            await node.start(second, claim, of=(plugin,))
            await node.until_runs(second)
            for pod in (first, second):
                await node.end(pod)
                await node.until_gone(pod)

        assert plugin.of("prepare", "unprepare") == [
            ("prepare", [claim]),
            ("prepare", [claim]),
            ("unprepare", [claim]),
        ]

    @pytest.mark.parametrize("cdi", ["example.com/none=nothing", "not a name"])
    async def test_a_cdi_name_that_nobody_knows_keeps_a_container_from_starting(
        self, node: Node, cdi: str
    ) -> None:
        pod, claim = node.name("pod"), node.name("gpu")
        plugin = node.plugin()
        plugin.cdi = cdi
        async with plugin, node.offer(plugin):
            await plugin.until_told()
            await node.start(pod, claim, of=(plugin,))
            await node.until_says(pod, f"unresolvable CDI devices {cdi}")
            await node.end(pod)
            await node.until_gone(pod)

        assert plugin.of("prepare", "unprepare") == [("prepare", [claim]), ("unprepare", [claim])]

    async def test_health_is_shown_until_its_stream_ends(self, node: Node) -> None:
        pod, claim = node.name("pod"), node.name("gpu")
        async with node.plugin() as plugin, node.offer(plugin):
            await plugin.until_told()
            plugin.report("HEALTHY")
            await node.start(pod, claim, of=(plugin,))
            await node.until_runs(pod)
            assert await node.health(pod, "Healthy") == ""
            plugin.report("UNHEALTHY", "too hot")
            assert await node.health(pod, "Unhealthy") == "too hot"
            plugin.end_reports()
            assert await node.health(pod, "Unknown") == ""
            await node.end(pod)
            await node.until_gone(pod)
