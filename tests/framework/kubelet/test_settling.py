"""A kubelet is believed about what it does not list once it has shown that it knows its pods."""

from __future__ import annotations

from hardpoint.kubelet.podsource import Checkpoint, Kubelet
from hardpoint.kubelet.settling import Settling, own_pod

FIRST, SECOND = Kubelet(1, 1, 1), Kubelet(1, 1, 2)
OWN = ("hardpoint", "agent-x")


def test_a_kubelet_that_lists_the_agents_own_pod_is_believed_after_a_while() -> None:
    settling = Settling("node-1", OWN)
    settling.heard({OWN}, FIRST, 100.0)

    assert not settling.settled(129.0)
    assert settling.settled(130.0)


def test_a_kubelet_that_was_started_anew_has_to_show_it_again() -> None:
    settling = Settling("node-1", OWN)
    settling.heard({OWN}, FIRST, 100.0)

    assert settling.heard(set(), SECOND, 200.0)
    assert not settling.settled(500.0)
    assert "own pod hardpoint/agent-x" in settling.doubt
    assert not settling.knows(SECOND)


def test_static_pods_alone_say_nothing_for_an_hour() -> None:
    settling = Settling("node-1", None)
    settling.heard({("kube-system", "etcd-node-1")}, FIRST, 0.0)
    assert not settling.settled(3599.0)

    settling.heard({("kube-system", "etcd-node-1")}, FIRST, 3600.0)
    assert settling.settled(3630.0)


def test_a_checkpoint_that_nobody_writes_any_more_is_believed_for_an_hour() -> None:
    settling, written = Settling("node-1", None), Checkpoint(written=(1, 1))

    assert settling.believes(written, 0.0)
    assert settling.believes(written, 3599.0)
    assert not settling.believes(written, 3600.0)
    assert settling.believes(Checkpoint(written=(1, 2)), 3601.0)


def test_the_own_pod_is_known_by_both_of_its_names_or_not_at_all() -> None:
    assert own_pod({"POD_NAMESPACE": "hardpoint", "POD_NAME": "agent-x"}) == OWN
    assert own_pod({"POD_NAME": "agent-x"}) is None
