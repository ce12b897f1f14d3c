"""How the cluster's demo waits: for what the API server tells, and beside what goes on."""

import asyncio
from typing import Any

import pytest

from hack.cluster_commands import ClusterError
from hack.cluster_recording import beside
from hack.cluster_world import World

SHORT_S = 0.01
LONG_S = 60.0


def pod(name: str, phase: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "uid": name}, "status": {"phase": phase}}


def phase_of(world: World, name: str) -> str | None:
    found = world.pods.get(name)
    return None if found is None else found["status"]["phase"]


async def test_a_wait_ends_with_the_change_that_it_is_for() -> None:
    told: list[str] = []
    world = World(lambda obj: told.append(obj["status"]["phase"]))

    def runs() -> str | None:
        return "node1" if phase_of(world, "a") == "Running" else None

    waiting = asyncio.create_task(world.until("it", runs, LONG_S))
    for phase in ("Pending", "Running"):
        await world._take(world.pods, "a", "MODIFIED", pod("a", phase))
    assert await waiting == "node1"
    assert told == ["Pending", "Running"]
    await world._take(world.pods, "a", "DELETED", pod("a", "Running"))
    assert (world.pods, told) == ({}, ["Pending", "Running"])


async def test_a_wait_in_vain_says_for_what_and_how_it_stands() -> None:
    world = World(lambda _: None)
    await world._take(world.pods, "a", "ADDED", pod("a", "Pending"))
    note = {"metadata": {"uid": "e"}, "regarding": {"uid": "a"}, "note": "no room"}
    await world._take(world.events, "e", "ADDED", note)
    with pytest.raises(ClusterError) as failed:
        await world.until("a place", lambda: None, SHORT_S)
    told = "0.01 s went by without a place; pod a: Pending, last told 'no room'"
    assert str(failed.value) == told


async def fail() -> None:
    raise ClusterError("the observer ended")


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def test_what_goes_on_beside_a_block_ends_with_it() -> None:
    ended: list[str] = []
    async with beside(forever(ended)):
        await asyncio.sleep(0)
    assert ended == ["ended"]


async def test_what_fails_beside_a_block_ends_the_block() -> None:
    ended: list[str] = []
    with pytest.raises(ClusterError, match="the observer ended"):
        async with beside(forever(ended), fail()):
            await asyncio.Event().wait()
    assert ended == ["ended"]


async def test_what_fails_in_a_block_is_raised_as_it_is() -> None:
    async def block() -> None:
        async with beside(forever([])):
            raise ClusterError("it was me")

    with pytest.raises(ClusterError, match="it was me"):
        await block()


async def test_a_block_that_is_cancelled_is_cancelled() -> None:
    ended: list[str] = []
    entered = asyncio.Event()

    async def block() -> None:
        async with beside(forever(ended)):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]
