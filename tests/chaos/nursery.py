"""Forks trainers from a process that has imported torch: a restart then takes no seconds of a core.

    python -m tests.chaos.nursery SOCKET

A connection's line says ROLE, SOCKET_DIR and ENGINE; the answer is the trainer's pid. It runs when
a second line comes, so that it can be registered before. `ROLE UPDATES` is answered with the digest
of so many updates that nobody disturbs.
"""

import atexit
import os
import signal
import socket
import sys
from pathlib import Path

import torch

from tests.chaos import trainer


def _live(connection: socket.socket) -> int:
    """In the child: the trainer's whole life. Returns its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    with connection, connection.makefile("rw") as lines:
        role, *rest = lines.readline().rstrip("\n").split("\t")
        match rest:
            case [updates]:
                lines.write(f"{trainer.undisturbed(role, int(updates))}\n")
                return 0
            case [sockets, engine]:
                lines.write(f"{os.getpid()}\n")
                lines.flush()
                if not lines.readline():
                    return 1
            case _:
                raise ValueError(rest)
    os.environ["TANDEM_SOCKET_DIR"] = sockets
    trainer.train(role, engine, Path(os.environ["TANDEM_CHAOS_RUN"]))
    return 0


def _warm_up() -> None:
    """What torch imports at its first step, with tensors too small for the device."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()


def main(path: str) -> None:
    """Serve until it is ended. Nobody waits for its children here: a pidfd tells of their end."""
    torch.set_num_threads(1)
    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                status = _live(connection)
                atexit._run_exitfuncs()  # the session's farewell; torch's own end takes seconds
                os._exit(status)
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
