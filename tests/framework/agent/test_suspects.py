"""Whether a pod that has what it must not have is the one that was seen; what of it is told."""

from __future__ import annotations

from hardpoint._core.pods.holding import Overstay
from hardpoint._core.pods.suspects import Suspect
from hardpoint.grants import Reaped, ReapResult, Release

GONE = ReapResult(Reaped.GONE, "there is no such pod")
SPARED = ReapResult(Reaped.SPARED, "a static pod")


def suspect(*seen: Overstay) -> Suspect:
    """A pod that was seen with these, one after the other."""
    made = Suspect(first=0.0, since=0.0, due=30.0)
    for one in seen:
        made.see(one)
    return made


def has(*devices: str, allocation: str = "a-1", uids: tuple[str, ...] = ()) -> Overstay:
    release = Release(id="r-1", allocation=allocation, source="s", devices=(), since=0.0)
    return Overstay(devices=devices, releases=(release,), uids=uids)


def test_a_pod_of_the_name_with_other_devices_is_another() -> None:
    assert suspect(has("gpu0")).is_another(has("gpu1"))


def test_a_pod_of_the_name_with_other_uids_or_of_another_allocation_is_another() -> None:
    assert suspect(has("gpu0", uids=("u-1",))).is_another(has("gpu0", uids=("u-2",)))
    assert suspect(has("gpu0")).is_another(has("gpu0", allocation="a-2"))


def test_a_pod_that_lets_one_device_go_after_the_other_is_the_same() -> None:
    seen = suspect(has("gpu0", "gpu1"), has("gpu1", "gpu2"))

    assert not seen.is_another(has("gpu2"))


def test_a_pod_is_the_same_once_more_is_known_of_it() -> None:
    assert not suspect(has("gpu0")).is_another(has("gpu0", uids=("u-1",)))


def test_what_was_known_of_a_pod_is_known_after_a_look_that_did_not_tell_it() -> None:
    """A drain has no allocation, and the kubelet alone tells no UID."""
    seen = suspect(has("gpu0", uids=("u-1",)), has("gpu0", allocation=""))

    assert seen.is_another(has("gpu0", allocation="a-2"))
    assert seen.is_another(has("gpu0", uids=("u-2",)))
    assert not seen.is_another(has("gpu0", uids=("u-1",)))


def test_that_it_is_gone_and_has_its_devices_hinders_only_while_that_is_so() -> None:
    pod = suspect(has("gpu0"))

    assert pod.hinders(GONE) == ""
    assert "still has its devices" in pod.hinders(GONE)
    assert pod.hinders(SPARED) == ""
    assert pod.hinders(GONE) == ""
