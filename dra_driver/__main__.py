"""Wires a node's arbiter, whose tenants somebody else starts: python -m dra_driver --node FILE."""

import argparse
import asyncio
import contextlib
import fcntl
import gc
import logging
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from claim_phases.node import Device as DeviceState
from claim_phases.node import Node
from claim_phases.turns import Turns
from claim_phases.turns_pb2_grpc import add_TurnsServicer_to_server
from dra_driver import config, journal
from dra_driver.arbiter import Arbiter
from dra_driver.devices import Device, DeviceError
from dra_driver.devices.simulated import SimulatedDevice
from dra_driver.journal import Journal, JournalError
from dra_driver.peers import Peer, Relay, private_directory
from dra_driver.processes import Registry
from dra_driver.roster import LocalRoster

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


def load_node(path: Path, devices: dict[str, Device], boot_id: str) -> Node:
    """The node as the journal has it; new after a reboot, which ends every tenant."""
    record = journal.read(path)
    if record is not None:
        try:
            node = Node.from_json(record)
        except ValueError as exc:
            raise JournalError(f"{path}: {exc}: run the arbiter that wrote it") from exc
        if node.boot_id == boot_id:
            return node
        path.replace(path.with_suffix(".before-reboot"))
    readings = {name: device.read() for name, device in devices.items()}
    return Node(
        boot_id,
        {name: DeviceState(name, r.total, baseline=r.used) for name, r in readings.items()},
    )


def serve(spec: config.NodeSpec, journal_type: type[Journal] = Journal) -> None:
    """Arbitrate until SIGTERM or SIGINT, or until it cannot go on: then raises what stopped it."""
    devices: dict[str, Device] = {n: SimulatedDevice(n, d) for n, d in spec.devices.items()}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with only_arbiter(spec.state_dir):
        path = spec.state_dir / "turns.journal"
        node = load_node(path, devices, boot_id)
        inner = private_directory(spec.state_dir / "inner")
        for left in inner.iterdir():
            left.unlink()
        with journal_type(path, node.to_json()) as store:
            asyncio.run(_arbitrate(spec, node, store, devices, inner / secrets.token_hex(4)))


async def _arbitrate(
    spec: config.NodeSpec, node: Node, store: Journal, devices: dict[str, Device], inner: Path
) -> None:
    roster = LocalRoster(spec, Registry(spec.processes))

    def tenant_of(peer: Peer) -> str:
        who = roster.identify(peer)
        return who.tenant if who is not None else ""

    relay = Relay(inner, tenant_of)
    turns = Turns(node, spec.limits)
    arbiter = Arbiter(turns, store, devices, roster, relay, spec.events, time.monotonic)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_TurnsServicer_to_server(arbiter, server)
    server.add_insecure_port(f"unix:{inner}")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, arbiter.close)
    try:
        await server.start()
        arbiter.start()
        for name, claim in spec.claims.items():
            await relay.serve(name, claim.socket_dir)
        log.info("arbitrates %s", ", ".join(devices))
        gc.freeze()  # what is there stays: a collection in the middle of a handover passes it over
        await arbiter.stopped
    finally:
        relay.close()
        arbiter.close()
        await server.stop(grace=0)


def main() -> None:
    """Parse, wire, run. Every fault of the node file is reported together."""
    parser = argparse.ArgumentParser(prog="python -m dra_driver", description=__doc__)
    parser.add_argument("--node", type=Path, required=True, help="the node file (JSON)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        serve(config.load(arguments.node))
    except (config.ConfigError, DeviceError, JournalError, OSError) as exc:
        print(exc, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
