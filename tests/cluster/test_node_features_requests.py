"""What a claim, a pod or a class may ask for beside a device, and who receives what."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.boards import RESOURCE, Boards, which
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ACME, World

CANNOT = "cannot allocate all claims"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
LOOK = ("/bin/sh", "-c", "echo $ACME_BOARD $ACME_MODE; ls /dev/acme")


def board(number: int) -> dict[str, Any]:
    return which(f"board-{number}", "board")


def seen(namespace: Namespace, pod: str, container: str = "c") -> list[str]:
    """Return a container's board and mode by its environment, and the boards in its /dev."""
    return namespace.run(pod, *LOOK, container=container).split()


def uid_of(namespace: Namespace, claim: str) -> str:
    return str(namespace.claim(claim)["metadata"]["uid"])


# -- the first that is to be had ------------------------------------------------------------------


def either(name: str) -> dict[str, Any]:
    """A claim that takes board-0 in one mode or board-1 in another."""
    options = [board(n) | {"name": f"choice-{n}"} for n in (0, 1)]
    mode = {"apiVersion": "hardpoint.dev/v1", "kind": "BoardParameters"}
    config = [
        {"requests": [f"main/choice-{n}"], "opaque": {"driver": ACME, "parameters": mode | more}}
        for n, more in ((0, {"mode": "fast"}), (1, {"mode": "slow"}))
    ]
    claim = pods.claim(name)
    claim["spec"]["devices"] = {
        "requests": [{"name": "main", "firstAvailable": options}],
        "config": config,
    }
    return claim


def test_of_a_prioritised_list_the_second_is_given_with_its_own_parameters_when_the_first_is_taken(
    boards: Boards, namespace: Namespace
) -> None:
    for name in ("one", "two"):
        namespace.create(either(name))
        uses = pods.container(uses=("own/main",))
        namespace.create(pods.pod(name, {"own": name}, uses))
        namespace.until_running(name)

    assert seen(namespace, "one") == ["board-0", "fast", "board-0"]
    assert seen(namespace, "two") == ["board-1", "slow", "board-1"]
    requests = {hold["device"]: hold["request"] for hold in boards.holds()}
    assert requests == {"board-0": "main/choice-0", "board-1": "main/choice-1"}
    namespace.create(either("three"))
    namespace.create(pods.pod("three", {"own": "three"}))
    namespace.until_says("three", CANNOT)
    namespace.delete_pods("one")
    namespace.until_running("three")
    assert seen(namespace, "three") == ["board-0", "fast", "board-0"]


# -- admin access ---------------------------------------------------------------------------------


def look_at(namespace: Namespace, number: int) -> None:
    """Ask for a board that somebody may have, to look at it."""
    labels = {"metadata": {"labels": ADMIN}}
    namespace.witness.patch("Namespace", namespace.name, labels)
    namespace.create(pods.claim("look", board=board(number) | {"adminAccess": True}))
    namespace.create(pods.pod("look", {"board": "look"}))


def test_admin_access_is_refused_at_the_pod_where_the_policy_has_no_opinion(
    boards: Boards, namespace: Namespace
) -> None:
    look_at(namespace, 0)

    said = namespace.until_says("look", "FailedPrepareDynamicResources")

    assert "admin access to device board-0 is refused" in said
    assert boards.holds() == []
    assert boards.told("board-0", "taken") == ""


def test_an_observer_that_a_policy_admits_sees_the_board_that_another_claim_holds_and_keeps(
    world: World, boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("own", board=board(0)))
    namespace.create(pods.pod("holder", {"board": "own"}))
    namespace.until_running("holder")
    with world.namespace(f"observers-{next(world.fresh)}") as observers:
        look_at(observers, 0)
        observers.until_running("look")

        assert seen(observers, "look") == ["board-0", "plain", "board-0"]
        assert {h["claim"]["name"]: h["admin_access"] for h in boards.holds()} == {
            "own": False,
            "look": True,
        }
        namespace.delete_pods("holder")
        namespace.create(pods.pod("next", {"board": "own"}))
        namespace.until_running("next")  # who looks takes nothing from anybody
        observers.delete_pods("look")
    assert boards.held() == ["board-0"]
    assert boards.told("board-0", "freed") == "alone"  # of the first holder; not of who looked


def test_a_namespace_without_the_label_may_not_ask_for_admin_access(namespace: Namespace) -> None:
    with pytest.raises(Exception, match="admin access to devices requires the"):
        namespace.create(pods.claim("look", board=board(0) | {"adminAccess": True}))


# -- extended resources ---------------------------------------------------------------------------


def limited(name: str, amount: int, resource: str = RESOURCE) -> dict[str, Any]:
    """A pod that asks for a resource as it would have of a device plugin."""
    limits = {"resources": {"limits": {resource: str(amount)}}}
    return pods.pod(name, {}, pods.container() | limits)


@pytest.mark.usefixtures("modern")
def test_a_pod_with_plain_limits_receives_a_board_and_gives_it_back(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(limited("p", 1))
    namespace.until_running("p")

    [held] = boards.holds()

    assert seen(namespace, "p") == [held["device"], "plain", held["device"]]
    status = namespace.pod("p")["status"]["extendedResourceClaimStatus"]
    assert held["claim"]["name"] == status["resourceClaimName"]
    assert held["request"] == "container-0-request-0"
    namespace.delete_pods("p")
    assert boards.holds() == []
    assert boards.told(held["device"], "freed") == "alone"
    until("no claim is left", lambda: not namespace.witness.items("ResourceClaim", namespace.name))


@pytest.mark.usefixtures("modern")
def test_plain_limits_and_claims_take_from_the_same_boards(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("own", board=board(1)))
    namespace.create(pods.pod("claims", {"board": "own"}))
    namespace.until_running("claims")
    namespace.create(limited("two", 2))
    namespace.until_says("two", CANNOT)
    assert boards.held() == ["board-1"]

    namespace.delete_pods("claims")

    namespace.until_running("two")
    assert boards.held() == ["board-0", "board-1"]
    assert seen(namespace, "two")[2:] == ["board-0", "board-1"]


@pytest.mark.usefixtures("modern")
def test_a_class_is_a_resource_under_its_own_name_too(boards: Boards, namespace: Namespace) -> None:
    namespace.create(limited("p", 1, "deviceclass.resource.kubernetes.io/acme-pool"))

    namespace.until_running("p")

    assert boards.held() in (["pool"], ["pool-whole"])


@pytest.mark.usefixtures("modern")
def test_two_containers_with_limits_receive_a_board_each(
    boards: Boards, namespace: Namespace
) -> None:
    limits = {"resources": {"limits": {RESOURCE: "1"}}}
    both = [pods.container(name) | limits for name in ("a", "b")]
    namespace.create(pods.pod("p", {}, *both, pods.container("none")))
    namespace.until_running("p")

    a, b = (seen(namespace, "p", name) for name in ("a", "b"))

    assert a[1:] == ["plain", a[0]]
    assert b[1:] == ["plain", b[0]]
    assert sorted((a[0], b[0])) == boards.held() == ["board-0", "board-1"]
    assert "No such file" in " ".join(seen(namespace, "p", "none"))


# -- containers -----------------------------------------------------------------------------------


def test_a_template_with_two_requests_gives_each_container_the_one_that_it_names(
    boards: Boards, namespace: Namespace
) -> None:
    template = {"spec": pods.claim_spec(left=board(0), right=board(1))}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": template}
    namespace.create(body | {"metadata": {"name": "pair"}})
    parts = [
        pods.container("l", uses=("own/left",)),
        pods.container("r", uses=("own/right",)),
        pods.container("both", uses=("own",)),
        pods.container("none"),
    ]
    namespace.create(pods.pod("p", {"own": "template:pair"}, *parts))
    namespace.until_running("p")

    found = {one["name"]: seen(namespace, "p", one["name"]) for one in parts}

    assert found["l"] == ["board-0", "plain", "board-0"]
    assert found["r"] == ["board-1", "plain", "board-1"]
    assert found["both"][2:] == ["board-0", "board-1"]
    assert "No such file" in " ".join(found["none"])
    assert boards.held() == ["board-0", "board-1"]
    namespace.delete_pods("p")
    assert boards.holds() == []


def test_init_containers_and_sidecars_receive_what_they_name_and_nothing_else(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("pair", left=board(0), right=board(1)))
    tell = f"{LOOK[2]} 2>&1; true"
    first = [
        pods.container("once", script=tell, uses=("own/left",)),
        pods.container("nothing", script=tell),
        pods.container("sidecar", uses=("own/right",)) | {"restartPolicy": "Always"},
    ]
    main = pods.container(uses=("own/left",))
    namespace.create(pods.pod("p", {"own": "pair"}, main, initContainers=first))
    namespace.until_running("p")

    assert namespace.log("p", "once").split() == ["board-0", "plain", "board-0"]
    assert "No such file" in namespace.log("p", "nothing")
    assert seen(namespace, "p", "sidecar") == ["board-1", "plain", "board-1"]
    assert seen(namespace, "p") == ["board-0", "plain", "board-0"]
    namespace.run("p", "kill", "1", container="sidecar")
    until("a second life", lambda: sidecar_restarts(namespace))
    namespace.until_running("p")
    assert seen(namespace, "p", "sidecar") == ["board-1", "plain", "board-1"]
    assert boards.held() == ["board-0", "board-1"]


def sidecar_restarts(namespace: Namespace) -> int:
    statuses = namespace.pod("p")["status"].get("initContainerStatuses") or ()
    return sum(int(one["restartCount"]) for one in statuses if one["name"] == "sidecar")


def test_a_pod_that_ends_by_itself_gives_its_board_back_though_it_is_not_deleted(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("own", board="acme-board"))
    job = pods.pod("job", {"own": "own"}, pods.container(script="ls /dev/acme", uses=("own",)))
    job["spec"]["restartPolicy"] = "Never"
    namespace.create(job)

    until("it has ended", lambda: namespace.pod("job")["status"]["phase"] == "Succeeded")

    until("nothing is held", lambda: boards.holds() == [])
    assert namespace.log("job").strip() in ("board-0", "board-1")
    until("deallocated", lambda: namespace.allocated("own") == [])


def test_a_pod_with_claims_of_two_kinds_receives_all_of_them(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("a", board=board(0)))
    namespace.create(pods.claim("b", part=which("half-0", "part")))
    namespace.create(pods.pod("p", {"a": "a", "b": "b"}))
    namespace.until_running("p")

    assert seen(namespace, "p")[2:] == ["board-0", "half-0"]
    holders = {hold["claim"]["uid"]: hold["device"] for hold in boards.holds()}
    assert holders == {uid_of(namespace, "a"): "board-0", uid_of(namespace, "b"): "half-0"}
