"""A node's snapshot: read back whole, or not at all."""

from collections.abc import Iterator
from typing import Any

import pytest

from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase


def node() -> Node:
    who = Membership("trainer", "trainer", "12:345", ("gpu0",), need=64, residual=4)
    tenant = Tenant(who, phase=Phase.WAITING, epoch=3, request=7)
    return Node("boot", {"gpu0": Device("gpu0", 100)}, 3, 9, ["trainer"], {"trainer": tenant})


def paths(data: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


# The names of a device or tenant are no keys of the format.
KEYS = [
    p for p in paths(node().to_json()) if p not in {("devices", "gpu0"), ("tenants", "trainer")}
]


def test_a_snapshot_reads_back_the_same() -> None:
    assert Node.from_json(node().to_json()) == node()


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_snapshot_with_any_key_missing_is_refused(path: tuple[str, ...]) -> None:
    data = node().to_json()
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    with pytest.raises(ValueError, match=r"state version|not a whole snapshot"):
        Node.from_json(data)


def test_a_snapshot_from_before_the_host_was_looked_at_is_read() -> None:
    data = node().to_json() | {"state_version": 2}
    del data["tenants"]["trainer"]["ran"], data["tenants"]["trainer"]["who"]["host"]
    read = Node.from_json(data).tenants["trainer"]
    assert (read.ran, read.who.host, read.unproven) == (True, None, False)


def test_a_snapshot_from_before_some_could_be_kept_is_read() -> None:
    data = node().to_json() | {"state_version": 3}
    for tenant in data["tenants"].values():
        del tenant["kept"]
    assert Node.from_json(data) == node()


def test_a_queue_with_an_unknown_tenant_is_refused() -> None:
    data = node().to_json()
    data["queue"] = ["rollout"]
    with pytest.raises(ValueError, match="no tenant rollout, which waits"):
        Node.from_json(data)
