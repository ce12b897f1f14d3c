"""Holds the cluster's namespaces: `unshare --net python -m hack.kube.keeper STATE`.

The process that listens on the keeper's socket is the first of the cluster. When it is killed, all
that was started in its namespaces ends, mounts and addresses too (`tandem.namespace`).
"""

import fcntl
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from hack.kube.layout import SERVICES, Layout
from tandem import namespace


def main() -> int:
    """Until it is killed."""
    layout = Layout(Path(sys.argv[1]))
    with layout.alive.open("w") as alive:
        # Every process of the chain inherits it: it is free when the last of them has ended, and
        # the first of a PID namespace ends after all others.
        fcntl.flock(alive, fcntl.LOCK_EX)
        return namespace.contained(lambda: _hold(layout))


def _hold(layout: Layout) -> NoReturn:
    address = layout.node(1).address
    for command in (
        "ip link set lo up",
        f"ip address add {address}/32 dev lo",
        # kube-proxy's rules see a connection of the machine's own only if it has a way to go.
        f"ip route add {SERVICES} dev lo src {address}",
    ):
        subprocess.run(command.split(), check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(layout.keeper))
        server.listen()
        while True:
            server.accept()[0].close()


if __name__ == "__main__":
    sys.exit(main())
