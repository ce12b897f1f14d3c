"""The real arbiter, whose devices are published to an API server as those of the node `node-1`.

python -m tests.contract.tainting_arbiter --node FILE --api URL
"""

import argparse
import asyncio
import time
from pathlib import Path

from kubernetes_asyncio.client import ApiClient, Configuration

from dra_driver import node_file, serving
from dra_driver.cluster import Cluster
from dra_driver.devices.simulated import SimulatedDevice
from dra_driver.local import LocalRoster
from dra_driver.processes import Registry
from dra_driver.slices import Publisher


async def arbitrate(spec: node_file.NodeSpec, state: serving.State, url: str) -> None:
    devices = {name: SimulatedDevice(name, path) for name, path in spec.devices.items()}
    sizes = {name: device.read().total for name, device in devices.items()}
    roster = LocalRoster(spec, Registry(spec.processes))
    async with ApiClient(Configuration(host=url)) as client:
        publisher = Publisher(Cluster(client, "node-1"), state.node, "node-1", sizes)
        async with serving.arbitrating(
            *(state, devices, roster, spec.limits, spec.events, publisher.note),
            spec.state_dir / "frozen",
        ) as running:
            for name, claim in spec.claims.items():
                await running.relay.serve(name, claim.socket_dir)
            events = running.events
            publishing = asyncio.create_task(
                publisher.run(lambda told: events.tell(told, time.monotonic()))
            )
            await asyncio.wait(
                {publishing, running.arbiter.stopped}, return_when=asyncio.FIRST_COMPLETED
            )
            publishing.cancel()


def main() -> None:
    """Arbitrate until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--api", required=True)
    arguments = parser.parse_args()
    spec = node_file.load(arguments.node)
    devices = {name: SimulatedDevice(name, path) for name, path in spec.devices.items()}
    with serving.opened(spec.state_dir, devices) as state:
        asyncio.run(arbitrate(spec, state, arguments.api))


if __name__ == "__main__":
    main()
