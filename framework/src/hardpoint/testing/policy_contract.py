"""The tests that every policy is held to: subclass, name the plugin, say what it reads.

    class TestAcme(PolicyContract):
        plugin = Acme

        def configure(self, root: Path) -> dict[str, Any]:
            return {"directory": str(root / "batch")}

        async def arrange(self, node: PolicyNode) -> None: ...          # a grant, a label to set

        async def make_unreadable(self, node: PolicyNode) -> None: ...  # what it reads
        async def make_readable(self, node: PolicyNode) -> None: ...

Of every hook that the policy has, what ``hardpoint.hookspecs`` promises is tried on a node with
GPUs, a kubelet and an API server; what else a hook needs to be tried, its test says. A policy that
reads nothing says ``reads = False``. In-tree policies pass the same class, unmodified.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hardpoint import hookspecs
from hardpoint.grants import Grant, GrantOutcome, Outcome
from hardpoint.model import Delivery, Event
from hardpoint.node import Node
from hardpoint.testing._frontend_node import NODE, TOKEN, watching_for_blocking
from hardpoint.testing._policy_grants_contract import GrantRules, UserRules
from hardpoint.testing._policy_node import PolicyNode, PolicyObject, policy_node
from hardpoint.testing._policy_reap_contract import ReapRules
from hardpoint.testing._policy_serve_contract import ServeRules, serving
from hardpoint.testing._policy_suite import RAISED
from hardpoint.testing._policy_verdicts_contract import VerdictRules

_WATCHED = """
import sys, threading
seen = []
def look(event, given):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.mkdir"):
        seen.append(event)
    if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+"):
        seen.append(f"open {given[0]}")
sys.addaudithook(look)
import importlib
importlib.import_module(sys.argv[1])
others = set(threading.enumerate()) - {threading.main_thread()}
seen += [f"thread {one.name}" for one in others]
print(*seen, sep="\\n", end="")
"""
"""Imports a module, and says what that did (docs.python.org/3/library/audit_events.html)."""
_CHANGEABLE = (list, dict, set, bytearray)


class PolicyContract(GrantRules, UserRules, VerdictRules, ReapRules, ServeRules):
    """Inherit from this, give ``plugin``, and say what its hooks read."""

    # -- loading ----------------------------------------------------------------------------------

    def test_it_loads_and_implements_only_hooks_that_exist(self, tmp_path: Path) -> None:
        record = self._record(tmp_path)

        assert record.state == "running", record.reason
        assert any(hasattr(self.plugin, hook) for hook in hookspecs.__all__), "it has no hook"

    def test_making_it_touches_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        record = self._record(tmp_path / "empty")

        assert record.state == "running", record.reason
        assert [path.name for path in tmp_path.rglob("*")] == ["empty"]

    def test_a_wrong_setting_refuses_it_with_a_sentence(self, tmp_path: Path) -> None:
        record = self._record(tmp_path, no_such_key=1)

        assert record.state == "refused"
        assert "no_such_key" in record.reason

    def test_importing_it_does_nothing(self) -> None:
        module = self.plugin.__module__
        if module.partition(".")[0] in sys.stdlib_module_names or not _importable(module):
            pytest.skip(f"{module} is not a module that another process can import")
        command = [sys.executable, "-B", "-c", _WATCHED, module]
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(  # noqa: S603 - this interpreter
            command,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "", f"importing {module} did: {done.stdout}"

    def test_its_objects_share_nothing_that_changes(self, tmp_path: Path) -> None:
        one, other = self._record(tmp_path).instance, self._record(tmp_path).instance
        names = (name for base in type(one).__mro__[:-1] for name in vars(base))
        own = [name for name in names if not name.startswith("__")]
        shared = [n for n in own if isinstance(getattr(one, n, None), _CHANGEABLE)]
        assert not shared, f"all its objects have one {shared[0]}: set it in __init__"
        kept = {name for name, value in _state(one).items() if isinstance(value, _CHANGEABLE)}
        same = [name for name in kept if _state(other).get(name) is _state(one)[name]]

        assert not same, f"two objects have one {same[0]}"

    def _record(self, root: Path, **wrong: Any) -> Any:
        from hardpoint._core.plugins.discovery import Plugin, Plugins

        node = Node(name=NODE, sys=root, dev=root, proc=root, run=root)
        node.kubelet = node.device_plugins = root
        record = Plugin("policy", "contract", loaded=self.plugin)
        Plugins([record]).start(record, node, {**self.configure(root), **wrong})
        return record

    # -- manners ----------------------------------------------------------------------------------

    async def test_two_objects_do_not_know_of_each_other(self, node: PolicyNode) -> None:
        first = await _answers(node.policy(), node)
        async with policy_node(self.plugin, self.configure) as elsewhere:
            await self.arrange(elsewhere)
            await _answers(elsewhere.policy(), elsewhere)

        assert await _answers(node.policy(), node) == first

    async def test_nothing_it_does_blocks_the_event_loop(self, node: PolicyNode) -> None:
        await self._whole_life(node)  # imports are over
        with watching_for_blocking(self.plugin) as seen:
            await self._whole_life(node)

        assert seen == []

    async def test_no_secret_reaches_the_log(
        self, node: PolicyNode, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        await self._whole_life(node)
        node.server.require_token("another")
        await self._whole_life(node)

        agent = node.agent
        said = [caplog.text, *map(str, (agent.faults, agent.notes, agent.events, agent.raised))]
        assert TOKEN not in " ".join(said)

    async def _whole_life(self, node: PolicyNode) -> None:
        """Ask it all there is to ask, and let it serve for a moment."""
        policy = node.policy()
        await _answers(policy, node)
        for hook, arguments in _told(node).items():
            if policy.has(hook):
                await _asked(policy, hook, arguments)
        if policy.has("serve_policy"):
            async with serving(node):
                await node.server.until_settled()


def _state(instance: object) -> dict[str, Any]:
    return dict(getattr(instance, "__dict__", {}))


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


async def _answers(policy: PolicyObject, node: PolicyNode) -> dict[str, str]:
    """Return what each hook that only answers says; of users, whether there are any."""
    found = {}
    for hook, arguments in _asking(node).items():
        if policy.has(hook):
            found[hook] = await _asked(policy, hook, arguments)
    return found


async def _asked(policy: PolicyObject, hook: str, arguments: dict[str, Any]) -> str:
    try:
        answer = await policy.ask(hook, **arguments)
    except RAISED as error:
        return f"raised {type(error).__name__}"
    if hook == "find_users":
        return f"{answer.users} {answer.why}"
    items = sorted(map(str, answer)) if isinstance(answer, tuple) else [str(answer)]
    return "\n".join(items)


def _asking(node: PolicyNode) -> dict[str, dict[str, Any]]:
    """Return the hooks that only answer, each with something to ask."""
    node.agent.show(*node.offered)
    device, offered = node.devices[0], node.agent.offer.devices[:1]
    delivery = Delivery(nodes=device.nodes)
    return {
        "grant_devices": {},
        "veto_devices": {"offer": node.agent.offer},
        "admit_claim": {"claim": node.claim(device), "devices": offered},
        "isolate_delivery": {"hold": node.hold(device), "device": device, "delivery": delivery},
        "annotate_delivery": {
            "hold": node.hold(device),
            "device": device,
            "claim": node.claim(device),
        },
        "find_users": {"release": node.release()},
        "label_node": {},
    }


def _told(node: PolicyNode) -> dict[str, dict[str, Any]]:
    """Return the hooks that do something, each with something to do."""
    release, grant = node.release(), Grant(allocation="alloc-9", source="policy/contract")
    name = f"train-{len(node.server.items('pods'))}"

    async def still_holds() -> bool:
        return True

    pod = node.holding(node.add_pod(name), still_holds)
    return {
        "report_grant": {"grant": grant, "outcome": GrantOutcome(Outcome.IN_FORCE)},
        "report_release": {"grant": grant, "release": release},
        "admit_reap": {"pod": pod, "release": release},
        "reap_pod": {"pod": pod, "release": release, "attempt": 1},
        "observe": {"event": Event(name="device-added", message="gpu-0 came")},
    }


__all__ = ["PolicyContract", "PolicyNode", "PolicyObject"]
