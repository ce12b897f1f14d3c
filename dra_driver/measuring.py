"""What a device holds, and whose that is by the processes that hold it."""

from dataclasses import replace

from claim_phases.events import Usage
from dra_driver.devices import Device
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
    tenants: dict[str, int] = {}
    foreign = 0
    for pid, size in holders.items():
        if pid in owners:
            tenants[owners[pid]] = tenants.get(owners[pid], 0) + size
        elif runs(pid):  # else it ended meanwhile, and its memory with it
            foreign += size
    budgets = tuple((tenant, roster.budget(tenant, device.name)) for tenant in tenants)
    usage = Usage(device.name, used, tuple(sorted(tenants.items())), foreign, budgets)
    held = used - usage.unknown
    if not usage.unknown or device.read().used <= held:  # what was freed meanwhile is nobody's
        return usage
    return replace(usage, ending=frozenset(roster.owners(ending()).values()))
