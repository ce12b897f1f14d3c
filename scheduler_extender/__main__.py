"""Wires the scheduler extender: python -m scheduler_extender --tls-dir DIR --listen HOST:PORT"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from scheduler_extender.app import App
from scheduler_extender.backoff import delay_s
from scheduler_extender.cluster import connected
from scheduler_extender.controller import Controller
from scheduler_extender.errors import ApiError
from scheduler_extender.names import JSON_DEPTH, NAMESPACE
from scheduler_extender.tls import Keeper
from scheduler_extender.webhook import Settings
from scheduler_extender.world import World

RESTART_RULES_SINCE: Final = (1, 36)
SERVICE: Final = f"tandem-extender.{NAMESPACE}.svc"

_Answer = TypeVar("_Answer")

log = logging.getLogger("scheduler_extender")


@dataclass(frozen=True)
class Options:
    """What it was started with. `agent_image` is empty where the sidecars run our own image."""

    agent_image: str
    tls_dir: Path
    host: str
    port: int


def options(arguments: Sequence[str]) -> Options:
    """Argparse ends the process where one is missing or wrong."""
    parser = argparse.ArgumentParser(prog="python -m scheduler_extender", description=__doc__)
    parser.add_argument(
        "--agent-image",
        default="",
        metavar="IMAGE",
        help="the image of the sidecars; not given: the one that this pod runs",
    )
    parser.add_argument(
        "--tls-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="a folder of its own, in memory, for the key that it serves with",
    )
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    given = parser.parse_args(arguments)
    return Options(given.agent_image, given.tls_dir, *given.listen)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, got {text}")
    return host, int(port)


async def serve(given: Options) -> None:
    """Runs until it is cancelled."""
    async with connected(socket.gethostname()) as cluster:
        settings = Settings(
            agent_image=given.agent_image or await _patiently(cluster.own_image),
            restart_rules=await _patiently(cluster.version) >= RESTART_RULES_SINCE,
        )
        changed = asyncio.Event()
        world = World(changed.set)
        controller = Controller(world, changed, cluster, asyncio.get_running_loop().time)
        given.tls_dir.mkdir(parents=True, exist_ok=True)
        keeper = Keeper(cluster, given.tls_dir, [SERVICE], lambda: datetime.now(UTC))
        app = App(controller.whereabouts, lambda: world.listed, settings)
        async with asyncio.TaskGroup() as tasks:
            for endless in (
                cluster.follow_pods(world.pods),
                cluster.follow_nodes(world.nodes),
                cluster.follow_claims(world.claims),
                cluster.follow_slices(world.slices),
                cluster.follow_secret(keeper),
                cluster.follow_webhook(keeper),
                keeper.keep(),
                controller.run(),
            ):
                tasks.create_task(endless)
            await keeper.ready.wait()
            async with app.listening(given.host, given.port, keeper.context) as port:
                log.info("serves on %s:%d with %s", given.host, port, settings)
                await asyncio.Event().wait()


async def _patiently(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    failures = 0
    while True:
        try:
            return await ask()
        except ApiError as exc:
            failures += 1
            log.warning("%s; asked again in %g s", exc, delay_s(failures))
            await asyncio.sleep(delay_s(failures))


async def _until_signal(given: Options) -> None:
    """`serve`, ended in order by SIGTERM or SIGINT: what was asked before is answered."""
    serving = asyncio.create_task(serve(given))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    log.info("stopped")


def main() -> None:
    given = options(sys.argv[1:])
    sys.setrecursionlimit(JSON_DEPTH)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(_until_signal(given))


if __name__ == "__main__":
    main()
