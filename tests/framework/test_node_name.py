"""What a node is called where nobody says it."""

from __future__ import annotations

import socket

import pytest

from hardpoint.node import Node


def test_a_node_is_called_after_its_host_as_the_kubelet_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ``GetHostname`` of k8s.io/component-helpers does: names of Nodes are lower case."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Worker-1.Example.COM\n")

    assert Node().name == "worker-1.example.com"
    assert Node(name="given").name == "given"
