"""Runs an arbiter over a node's devices: its lock, its state, its sockets."""

import asyncio
import contextlib
import fcntl
import gc
import logging
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from claim_phases.events import Told
from claim_phases.node import Device as DeviceState
from claim_phases.node import Node
from claim_phases.turns import Limits, Turns
from claim_phases.turns_pb2_grpc import add_TurnsServicer_to_server
from dra_driver import journal
from dra_driver.arbiter import Arbiter
from dra_driver.devices import Device
from dra_driver.event_log import EventLog
from dra_driver.journal import Journal, JournalError
from dra_driver.peers import Peer, Relay, private_directory
from dra_driver.roster import Roster

log = logging.getLogger("tandem.arbiter")

SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 10),
    ("grpc.max_concurrent_streams", 16),
    # A connection that says nothing, and one that has no session, is not kept.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 10_000),
]


@contextlib.contextmanager
def only_arbiter(state_dir: Path) -> Iterator[None]:
    """Wait until no other arbiter has the node; none gets it while this lasts.

    Two must never decide about one device. The kernel frees the lock when its holder dies.
    """
    path = private_directory(state_dir) / "lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another arbiter has this node: waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_node(path: Path, devices: Mapping[str, Device], boot_id: str) -> Node:
    """The node as the journal has it; new after a reboot, which ends every tenant."""
    record = journal.read(path)
    if record is not None:
        try:
            node = Node.from_json(record)
        except ValueError as exc:
            raise JournalError(f"{path}: {exc}: run the arbiter that wrote it") from exc
        if node.boot_id == boot_id:
            return _with_devices(node, devices)
        path.replace(path.with_suffix(".before-reboot"))
    else:
        journal.check_gone(path, boot_id)
    return _with_devices(Node(boot_id, {}), devices)


def _with_devices(node: Node, devices: Mapping[str, Device]) -> Node:
    """The node with the devices that it has now: new ones are measured, those that left must be
    nobody's.
    """
    for name in [name for name in node.devices if name not in devices]:
        if tenants := node.on(name):
            raise JournalError(
                f"device {name} is not configured any more, and {tenants[0].name} uses it: end "
                f"its pods, or configure the device again"
            )
        del node.devices[name]
    for name in devices.keys() - node.devices.keys():
        reading = devices[name].read()
        node.devices[name] = DeviceState(name, reading.total, baseline=reading.used)
    return node


class Census(Roster, Protocol):
    """A roster that also says whose connections are counted together."""

    def counted_as(self, peer: Peer) -> str:
        """Names the peer's tenant; empty when there is none."""


@dataclass(frozen=True, slots=True)
class State:
    """What an arbiter takes up and keeps: it has the node alone while this is open."""

    node: Node
    store: Journal
    directory: Path


@contextlib.contextmanager
def opened(
    directory: Path, devices: Mapping[str, Device], journal_type: type[Journal] = Journal
) -> Iterator[State]:
    """Wait until the node is this arbiter's, and take up its state. Raises JournalError."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with only_arbiter(directory):
        path = directory / "turns.journal"
        node = load_node(path, devices, boot_id)
        with journal_type(path, node.to_json()) as store:
            journal.keep(path, boot_id)
            yield State(node, store, directory)


@dataclass(frozen=True, slots=True)
class Running:
    """An arbiter that decides, the relay that serves its claims' sockets, and what is told."""

    arbiter: Arbiter
    relay: Relay
    events: EventLog


def _of_this_boot(folder: Path, boot_id: str) -> Path:
    """What was frozen before the node was started has ended with that."""
    for other in folder.iterdir() if folder.is_dir() else ():
        if other.name != boot_id:
            shutil.rmtree(other, ignore_errors=True)
    return folder / boot_id


@contextlib.asynccontextmanager
async def arbitrating(
    state: State,
    devices: Mapping[str, Device],
    census: Census,
    limits: Limits,
    events: Path,
    listener: Callable[[Told], None],
    frozen: Path,
) -> AsyncIterator[Running]:
    """Decide until the block ends; SIGTERM and SIGINT make `arbiter.stopped` done.

    `frozen`: where what frozen tenants hold is kept.
    """
    inner = private_directory(state.directory / "inner")
    for left in inner.iterdir():
        left.unlink()
    inner /= secrets.token_hex(4)
    relay = Relay(inner, census.counted_as)
    turns = Turns(state.node, limits)
    told = EventLog(events, time.monotonic)
    arbiter = Arbiter(
        *(turns, state.store, dict(devices), census, relay, told, time.monotonic, listener),
        frozen_under=_of_this_boot(frozen, state.node.boot_id),
    )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_TurnsServicer_to_server(arbiter, server)
    server.add_insecure_port(f"unix:{inner}")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, arbiter.close)
    try:
        await server.start()
        arbiter.start()
        log.info("arbitrates %s", ", ".join(devices))
        gc.freeze()  # what is there stays: a collection in the middle of a handover passes it over
        yield Running(arbiter, relay, told)
    finally:
        relay.close()
        arbiter.close()
        await arbiter.drained()
        await server.stop(grace=0)
