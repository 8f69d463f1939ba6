"""Who has what, of one answer of the kubelet's, also by holds that know less than they should."""

from __future__ import annotations

from hardpoint._core.pods.podlist import PodList
from hardpoint.allocation import PodUser, allocation_key
from hardpoint.grants import published_name
from hardpoint.kubelet.pods import HeldDevice, HeldResource, PodUse
from hardpoint.model import ClaimKey

DRIVER, GPU = "gpu.example.com", "example.com/gpu"
TRAIN = PodUser("ml", "train", "main")
CLAIM = ClaimKey("uid-1", "ml", "c-1", DRIVER)


def has_claim(device: str, *, claim: str = "c-1", driver: str = DRIVER) -> PodList:
    held = HeldDevice(
        container="main",
        driver=driver,
        pool="node-1",
        device=device,
        claim_namespace="ml",
        claim_name=claim,
    )
    return PodList.of([PodUse(namespace="ml", name="train", devices=(held,))])


def test_a_claims_device_is_had_under_the_name_that_is_published() -> None:
    listed = has_claim(published_name("gpu0", "a-1"))

    assert listed.users(CLAIM, "gpu0", "a-1") == (TRAIN,)
    assert listed.users(CLAIM, "gpu1", "a-1") == ()


def test_a_hold_that_does_not_know_its_grant_is_had_by_who_has_the_device() -> None:
    """It was found again in a CDI file: that nobody is listed would call it free."""
    listed = has_claim(published_name("gpu0", "a-1"))

    assert listed.users(CLAIM, "gpu0") == (TRAIN,)
    assert listed.users(CLAIM, "gpu") == ()


def test_a_hold_whose_claim_has_no_name_yet_is_had_by_who_has_the_device() -> None:
    nameless = ClaimKey("uid-1", "", "", DRIVER)

    assert has_claim("gpu0").users(nameless, "gpu0") == (TRAIN,)
    assert has_claim("gpu1").users(nameless, "gpu0") == ()
    assert has_claim("gpu0", driver="other.example.com").users(nameless, "gpu0") == ()


def test_another_claims_device_is_no_word_on_this_one() -> None:
    assert has_claim("gpu0", claim="c-2").users(CLAIM, "gpu0") == ()


def test_an_id_is_known_by_its_digest_alone() -> None:
    held = HeldResource(container="main", resource=GPU, ids=("gpu0@a-1",))
    listed = PodList.of([PodUse(namespace="ml", name="train", resources=(held,))])
    uid = allocation_key(GPU, "gpu0@a-1", DRIVER).uid

    assert listed.users(ClaimKey(uid, GPU, "gpu0@a-1", DRIVER), "gpu0") == (TRAIN,)
    assert listed.users(ClaimKey(uid, "", "", DRIVER), "gpu0") == (TRAIN,)
    other = allocation_key(GPU, "gpu1@a-1", DRIVER).uid
    assert listed.users(ClaimKey(other, "", "", DRIVER), "gpu1") == ()
