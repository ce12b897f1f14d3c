"""What a device holds, and whose that is by the processes that hold it."""

from collections.abc import Iterable
from dataclasses import replace

from claim_phases.events import Usage
from dra_driver.devices import Blocks, Device, covered
from dra_driver.processes import ending, runs
from dra_driver.roster import Roster


def total(device: Device) -> Usage:
    """The sum alone. Raises DeviceError."""
    return Usage(device.name, device.read().used)


def attributed(device: Device, roster: Roster) -> Usage:
    """The sum, and what the processes of each tenant hold of it. Raises DeviceError, RegistryError.

    A process that has begun to end holds what it held until that is taken from it, which of many
    GiB lasts, but no list of processes shows it: where bytes are nobody's, it is said who ends.
    """
    used = device.read().used
    holders = device.holders()
    owners = roster.owners(holders)
    mine: dict[str, list[Blocks]] = {}
    foreign: list[Blocks] = []
    for pid, blocks in holders.items():
        if pid in owners:
            mine.setdefault(owners[pid], []).append(blocks)
        elif runs(pid):  # else it ended meanwhile, and its memory with it
            foreign.append(blocks)
    tenants = tuple(sorted((tenant, _together(held)) for tenant, held in mine.items()))
    budgets = tuple((tenant, roster.budget(tenant, device.name)) for tenant, _ in tenants)
    usage = Usage(device.name, used, tenants, _together(foreign), budgets)
    held = used - usage.unknown
    if not usage.unknown or device.read().used <= held:  # what was freed meanwhile is nobody's
        return usage
    return replace(usage, ending=frozenset(roster.owners(ending()).values()))


def _together(held: Iterable[Blocks]) -> int:
    """Bytes; a block that several processes map, as those that were forked do, is there once."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for blocks in held:
        for block, of_block in blocks.items():
            ranges.setdefault(block, []).extend(of_block)
    return sum(map(covered, ranges.values()))
