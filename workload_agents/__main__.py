"""The agent in front of an engine: `python -m workload_agents --role rollout --engine vllm ...`"""

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from workload_agents.activator import Activator, engine_client
from workload_agents.adapters.vllm import VllmMemory, WeightsAhead
from workload_agents.callers import Callers
from workload_agents.errors import TandemError
from workload_agents.gate import Gate
from workload_agents.session import Session

SOCKET: Final = "turns.sock"

log = logging.getLogger("workload_agents")


@dataclass(frozen=True)
class Settings:
    """What the agent was started with."""

    role: str
    engine_url: str
    host: str
    port: int
    wait_s: float
    engine_weights: int | None
    socket: Path
    weights: Path


class SettingsError(Exception):
    """Everything that is wrong with the arguments and the environment, in one line."""


class EngineEnded(Exception):
    """This agent's work is over: the next engine is to be started under a turn of its own."""


def settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError; argparse itself ends the process where an argument is missing."""
    parser = argparse.ArgumentParser(prog="python -m workload_agents", description=__doc__)
    parser.add_argument("--role", required=True, help="the tenant's role, for example rollout")
    parser.add_argument("--engine", required=True, choices=["vllm"])
    parser.add_argument("--engine-url", required=True, metavar="http://127.0.0.1:PORT")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--wait-s", required=True, help="how long a request may wait for the turn, in seconds"
    )
    parser.add_argument(
        "--engine-weights",
        metavar="BYTES",
        help="the most that the engine's weights take on each device: they are restored ahead of "
        "the turn where there is room for as much (default: all is restored in the turn)",
    )
    given = parser.parse_args(arguments)
    wrong = [
        f"{name} is not set (the driver or `tandem local` sets it)"
        for name in ("TANDEM_SOCKET_DIR", "TANDEM_WEIGHTS_DIR")
        if not environment.get(name)
    ]
    host, port = _host_and_port(given.listen)
    if not host or port is None:
        wrong.append(f"--listen: must be HOST:PORT, got {given.listen}")
    url = urlsplit(given.engine_url)
    if url.scheme != "http" or not url.hostname or url.path.strip("/") or url.query:
        wrong.append(f"--engine-url: must be http://HOST:PORT, got {given.engine_url}")
    wait_s = _positive(given.wait_s)
    if wait_s is None:
        wrong.append(f"--wait-s: must be a number > 0, got {given.wait_s}")
    weights = None
    if given.engine_weights is not None and (weights := _count(given.engine_weights)) is None:
        wrong.append(f"--engine-weights: must be a number of bytes > 0, got {given.engine_weights}")
    if wrong or port is None or wait_s is None:
        raise SettingsError("; ".join(wrong))
    return Settings(
        role=given.role,
        engine_url=given.engine_url,
        host=host,
        port=port,
        wait_s=wait_s,
        engine_weights=weights,
        socket=Path(environment["TANDEM_SOCKET_DIR"]) / SOCKET,
        weights=Path(environment["TANDEM_WEIGHTS_DIR"]),
    )


def _host_and_port(text: str) -> tuple[str, int | None]:
    host, _, port = text.rpartition(":")
    valid = port.isascii() and port.isdigit() and int(port) < 1 << 16
    return host, int(port) if valid else None


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


async def serve(given: Settings) -> None:
    """Runs until the engine ends. Raises EngineEnded, or TandemError where it did not start."""
    engine_ended = asyncio.Event()
    callers = Callers()
    async with engine_client() as client:
        engine = VllmMemory(
            client,
            given.engine_url,
            given.weights,
            in_flight=lambda: gate.in_flight,
            engine_ended=engine_ended,
        )

        def on_wanted() -> None:
            gate.consider_yielding()

        size = given.engine_weights
        memory = engine if size is None else WeightsAhead(engine, size)
        session = Session(given.socket, given.role, memory, on_wanted=on_wanted)
        gate = Gate(session, engine, wait_s=given.wait_s)
        activator = Activator(
            gate, engine, client, given.engine_url, callers.caller_of, engine_ended
        )
        log.info("session: %s waits for the arbiter at %s", given.role, given.socket)
        async with session, activator.listening(given.host, given.port):
            log.info("activator: %s:%d -> %s", given.host, given.port, given.engine_url)
            why = await _end_of_engine(activator, session, engine_ended)
    raise EngineEnded(why or f"the engine at {given.engine_url} ended, or must be restarted")


async def _end_of_engine(
    activator: Activator, session: Session, engine_ended: asyncio.Event
) -> str:
    """Start the engine, and return when it ended: why, if the arbiter told it."""
    starting = asyncio.create_task(activator.start())
    refused = asyncio.create_task(session.refused())
    ended = asyncio.create_task(engine_ended.wait())
    try:
        await asyncio.wait({starting, refused, ended}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not refused.done():
            starting.result()
            await asyncio.wait({refused, ended}, return_when=asyncio.FIRST_COMPLETED)
        return refused.result() if refused.done() else ""
    finally:
        for task in (starting, refused, ended):
            task.cancel()
        await asyncio.gather(starting, refused, ended, return_exceptions=True)


async def _until_signal(given: Settings) -> None:
    """`serve`, ended in order by SIGTERM or SIGINT."""
    serving = asyncio.create_task(serve(given))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        stopped.cancel()
        await serving
    serving.cancel()
    await asyncio.wait([serving])
    log.info("stopped")


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        given = settings(sys.argv[1:], os.environ)
    except SettingsError as exc:
        sys.exit(f"python -m workload_agents: {exc}")
    # Each waiting request is an open connection, and so is each forwarded one.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(_until_signal(given))
    except (EngineEnded, TandemError) as exc:
        sys.exit(f"python -m workload_agents: {exc}")


if __name__ == "__main__":
    main()
