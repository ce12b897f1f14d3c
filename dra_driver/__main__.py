"""The node's driver.

python -m dra_driver --node FILE        arbitrates a node whose tenants somebody else starts
python -m dra_driver --config FILE      serves the kubelet of the node called NODE_NAME
"""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from dra_driver import node_file, serving
from dra_driver.checkpoint import CheckpointError
from dra_driver.devices import Device, DeviceError
from dra_driver.devices.simulated import SimulatedDevice
from dra_driver.journal import Journal, JournalError
from dra_driver.local import LocalRoster
from dra_driver.processes import Registry


def serve(spec: node_file.NodeSpec, journal_type: type[Journal] = Journal) -> None:
    """Arbitrate until SIGTERM or SIGINT, or until it cannot go on: then raises what stopped it."""
    devices: dict[str, Device] = {n: SimulatedDevice(n, d) for n, d in spec.devices.items()}
    with serving.opened(spec.state_dir, devices, journal_type) as state:
        asyncio.run(_arbitrate(spec, state, devices))


async def _arbitrate(
    spec: node_file.NodeSpec, state: serving.State, devices: dict[str, Device]
) -> None:
    roster = LocalRoster(spec, Registry(spec.processes))
    async with serving.arbitrating(
        *(state, devices, roster, spec.limits, spec.events, lambda _: None),
        frozen=state.directory / "frozen",
    ) as running:
        for name, claim in spec.claims.items():
            await running.relay.serve(name, claim.socket_dir)
        await running.arbiter.stopped


def main() -> None:
    """Parse, wire, run. Every fault of the file is reported together."""
    parser = argparse.ArgumentParser(prog="python -m dra_driver", description="The node's driver.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--node", type=Path, help="arbitrate the node of this file (JSON)")
    source.add_argument("--config", type=Path, help="serve a kubelet, with this file (YAML)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        if arguments.node is not None:
            serve(node_file.load(arguments.node))
        else:
            _serve_kubelet(arguments.config)
    except (
        node_file.NodeFileError,
        CheckpointError,
        DeviceError,
        JournalError,
        OSError,
    ) as exc:
        print(exc, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _serve_kubelet(config: Path) -> None:
    # What this needs comes with the extra `driver`; a local run has it not.
    from dra_driver import plugin

    try:
        plugin.serve(plugin.load(config), plugin.identity(os.environ))
    except plugin.SettingsError as exc:
        print(exc, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
