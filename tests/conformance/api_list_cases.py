"""Collections: selected, in pages, and watched."""

from __future__ import annotations

from typing import Any

from conformance.api_object_cases import SLICES, body, created, path
from conformance.api_slice_cases import sliced
from conformance.exchange import GROUP, MERGE, Answer, Api

ENDED = "k8s.io/initial-events-end"


def _names(api: Api, found: Answer) -> Any:
    if found.code != 200:
        return api.look(found)
    return [api.said(item["metadata"]["name"]) for item in found.body["items"]]


async def _three(api: Api) -> None:
    """Make a (mark x), b (mark y) and c (no mark), all of one set."""
    for word, labels in (("a", {"mark": "x"}), ("b", {"mark": "y"}), ("c", {})):
        await created(api, word, labels={"set": api.name("s"), **labels})


async def labels_select(api: Api) -> Any:
    await _three(api)
    return {
        asked: _names(
            api,
            await api.ask("GET", SLICES, labelSelector=f"set={api.name('s')},{asked}".rstrip(",")),
        )
        for asked in (
            *(
                "",
                "mark=x",
                "mark==x",
                "mark!=x",
                "mark",
                "!mark",
                "mark in (x, y)",
                "mark notin (x)",
            ),
            *(
                "mark=",
                "mark in ()",
                "mark in (z)",
                "mark>1",
                "mark=a b",
                "a b=c",
                "=x",
                "mark in x",
            ),
        )
    }


async def fields_select(api: Api) -> Any:
    driver = f"{api.name('d')}.example.com"
    for word, node in (("a", "node-a"), ("b", "node-b")):
        whole = sliced(metadata={"name": api.name(word)}, driver=driver, nodeName=node)
        await api.ask("POST", SLICES, whole)
    return {
        asked: _names(
            api,
            await api.ask("GET", SLICES, fieldSelector=f"spec.driver={driver},{asked}".rstrip(",")),
        )
        for asked in (
            *("", "spec.nodeName=node-a", "spec.nodeName!=node-a", "spec.nodeName==node-b"),
            *("spec.pool.name=node-a", "spec.nodeName=", "spec.color=red", "metadata.namespace=x"),
            *("spec.nodeName", "spec.nodeName=a\\,b", "spec.nodeName=a=b", "metadata.uid=1"),
        )
    }


async def each_kind_has_its_own_fields_to_select_by(api: Api) -> Any:
    looks = {}
    for where, asked in (
        ("/api/v1/pods", "spec.nodeName=nowhere"),
        ("/api/v1/pods", "status.phase=Strange"),
        ("/api/v1/pods", "spec.restartPolicy=Strange"),
        ("/api/v1/pods", "spec.hostname=x"),
        ("/api/v1/nodes", f"metadata.name={api.name('n')}"),
        ("/api/v1/nodes", "spec.unschedulable=true"),
        ("/api/v1/nodes", "spec.podCIDR=x"),
        ("/api/v1/events", f"involvedObject.name={api.name('n')}"),
        ("/api/v1/events", "reason=Strange,type=Warning"),
        ("/api/v1/events", "message=x"),
        (f"{GROUP}/resourceclaims", f"metadata.name={api.name('n')}"),
        (f"{GROUP}/resourceclaims", "spec.x=y"),
        (f"{GROUP}/deviceclasses", f"metadata.name={api.name('n')}"),
    ):
        found = await api.ask("GET", where, fieldSelector=asked)
        looks[f"{where} {api.said(asked)}"] = _names(api, found)
    return looks


async def a_collection_is_read_in_pages(api: Api) -> Any:
    await _three(api)
    query = {"labelSelector": f"set={api.name('s')}", "limit": "2"}
    first = await api.ask("GET", SLICES, query=query)
    rest = await api.ask(
        "GET", SLICES, query=query | {"continue": first.body["metadata"]["continue"]}
    )
    return [
        _names(api, first),
        sorted(first.body["metadata"]),
        _names(api, rest),
        sorted(rest.body["metadata"]),
        first.version == rest.version,
    ]


async def later_pages_are_of_the_first_pages_time(api: Api) -> Any:
    await _three(api)
    query = {"labelSelector": f"set={api.name('s')}", "limit": "1"}
    first = await api.ask("GET", SLICES, query=query)
    await api.ask("DELETE", path(api, "b"))
    await created(api, "d", labels={"set": api.name("s")})
    token = {"continue": first.body["metadata"]["continue"]}
    rest = await api.ask("GET", SLICES, query=query | {"limit": "9"} | token)
    return [_names(api, first), _names(api, rest)]


async def a_list_says_what_it_is_of(api: Api) -> Any:
    await _three(api)
    found = await api.ask("GET", SLICES, labelSelector=f"set={api.name('s')}")
    empty = await api.ask("GET", SLICES, labelSelector=f"set={api.name('none')}")
    return api.look(found, empty)


async def a_page_is_asked_for_rightly(api: Api) -> Any:
    return api.look(
        *[
            await api.ask("GET", SLICES, labelSelector="a=none", query=query)
            for query in (
                {"continue": "nonsense"},
                {"limit": "some"},
                {"limit": "-1"},
                {"resourceVersion": "some"},
                {"resourceVersionMatch": "Exact"},
                {"resourceVersionMatch": "Strange", "resourceVersion": "1"},
                {"resourceVersion": "0"},
                {"resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"},
            )
        ]
    )


# -- watching -------------------------------------------------------------------------------------


async def a_watch_begins_with_what_is_there(api: Api) -> Any:
    await _three(api)
    async with api.watch(SLICES, labelSelector=f"set={api.name('s')}") as watch:
        there = await watch.look(3)
        await api.ask("DELETE", path(api, "b"))
        return [watch.code, sorted(there), await watch.look(1)]


async def a_watch_goes_on_from_a_version(api: Api) -> Any:
    await _three(api)
    query = {"labelSelector": f"set={api.name('s')}"}
    listed = await api.ask("GET", SLICES, query=query)
    await api.ask("PATCH", path(api), {"metadata": {"labels": {"mark": "z"}}}, kind=MERGE)
    async with api.watch(SLICES, resourceVersion=listed.version, **query) as watch:
        seen = await watch.look(1)
        await created(api, "d", labels={"set": api.name("s")})
        await api.ask("DELETE", path(api, "a"))
        return [*seen, *await watch.look(2)]


async def what_enters_or_leaves_a_selection_is_added_or_deleted(api: Api) -> Any:
    await _three(api)
    listed = await api.ask("GET", SLICES, labelSelector=f"set={api.name('s')}")
    query = {"labelSelector": f"set={api.name('s')},mark=x", "resourceVersion": listed.version}
    async with api.watch(SLICES, **query) as watch:
        for word, mark in (("a", "y"), ("b", "x"), ("a", "x"), ("c", "q")):
            change = {"metadata": {"labels": {"mark": mark}}}
            await api.ask("PATCH", path(api, word), change, kind=MERGE)
        await api.ask("DELETE", path(api, "a"))
        return await watch.look(4)


async def a_deletion_is_of_a_new_version(api: Api) -> Any:
    made = await created(api, labels={"set": api.name("s")})
    query = {"labelSelector": f"set={api.name('s')}", "resourceVersion": made.version}
    async with api.watch(SLICES, **query) as watch:
        await api.ask("DELETE", path(api))
        event = await watch.next()
    found = event["object"]["metadata"]
    return [
        event["type"],
        int(found["resourceVersion"]) > int(made.version),
        found["uid"] == made.uid,
    ]


async def a_watch_ends_in_time(api: Api) -> Any:
    async with api.watch(SLICES, labelSelector="a=none", timeoutSeconds="1") as watch:
        return await watch.look(1)


async def a_version_that_is_not_yet_is_waited_for_in_vain(api: Api) -> Any:
    later = {"resourceVersion": str(1 << 60)}
    listed = await api.ask("GET", SLICES, labelSelector="a=none", query=later)
    return [listed.code, listed.body["reason"]]


async def a_watch_is_asked_for_rightly(api: Api) -> Any:
    return api.look(
        *[
            await api.ask("GET", SLICES, watch="true", query=query)
            for query in (
                {"resourceVersion": "some"},
                {"fieldSelector": "spec.color=red"},
                {"labelSelector": "a b"},
                {"timeoutSeconds": "long"},
                {"sendInitialEvents": "true"},
                {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
            )
        ]
    )


async def a_watch_can_stand_for_the_list_before_it(api: Api) -> Any:
    await _three(api)
    query = {
        "labelSelector": f"set={api.name('s')}",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with api.watch(SLICES, **query) as watch:
        there = await watch.look(3)
        mark = await watch.next()
        await created(api, "d", labels={"set": api.name("s")})
        after = await watch.look(1)
    found = mark["object"]
    told = [mark["type"], found["kind"], found["metadata"].get("annotations")]
    return [sorted(there), told, after]


async def an_unchanged_update_is_no_event(api: Api) -> Any:
    made = await created(api, labels={"set": api.name("s")})
    query = {"labelSelector": f"set={api.name('s')}", "resourceVersion": made.version}
    async with api.watch(SLICES, **query) as watch:
        await api.ask("PUT", path(api), made.body)
        await api.ask("POST", SLICES, body(api, "b", labels={"set": api.name("s")}))
        return await watch.look(1)
