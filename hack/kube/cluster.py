"""A cluster on this machine as a person handles it."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from hack.kube import (
    builds,
    certificates,
    cgroups,
    components,
    configs,
    debian,
    images,
    mounts,
    spaces,
)
from hack.kube.builds import Programs
from hack.kube.components import Component
from hack.kube.errors import LocalkubeError
from hack.kube.layout import Layout
from hack.kube.progress import Progress
from hack.kube.starting import Starting

_SOCKET_PATH_MAX: Final = 107


class Cluster:
    """Up or not. Each of its methods raises LocalkubeError."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self.layout = layout
        self._progress = progress

    def up(self, nodes: int) -> None:
        """Start what of the cluster does not run; with more nodes than before, if asked."""
        _check(self.layout)
        debian.install_missing(self._progress.say)
        programs = builds.programs(self._progress)
        self._progress.say("images, built from this machine")
        with images.built(programs) as made, self._exclusively():
            fresh = spaces.keeper(self.layout) is None
            try:
                if fresh:
                    self._found()
                    spaces.make(self.layout)
                self._starting(programs, spaces.running(self.layout)).everything(nodes, made)
            except BaseException:
                if fresh:  # what did not come up is no cluster; its logs stay
                    self._end()
                raise

    def build(self) -> None:
        """Build what `up` needs and is not there yet."""
        builds.programs(self._progress)

    def down(self) -> None:
        """End everything, and remove all that there is of it."""
        if not self.layout.marker.exists():
            return
        with self._exclusively():
            self._end()
            _empty(self.layout)
            self.layout.state.rmdir()

    def restart(self, name: str) -> None:
        """Stop and start the components of this name; `kubelet` means each node's."""
        programs = builds.programs(self._progress)
        with self._running() as keeper:
            wanted = self._named(name, programs)
            self._stop(wanted)
            self._starting(programs, keeper).these(wanted)

    def stop(self, name: str) -> None:
        """Stop the components of this name, until the next `up` or `restart`."""
        programs = builds.programs(self._progress)
        with self._running():
            self._stop(self._named(name, programs))

    def schedule_with(self, config: Path | None) -> None:
        """Run kube-scheduler with another KubeSchedulerConfiguration; None: the plain one."""
        given = configs.PLAIN_SCHEDULER if config is None else _scheduler_config(config)
        spaces.running(self.layout)
        self.layout.scheduler.write_text(configs.scheduler(self.layout, given))
        self.restart(components.SCHEDULER)

    def import_images(self) -> list[str]:
        """Build the images, and import those that changed; return their names."""
        programs = builds.programs(self._progress)
        with images.built(programs) as made, self._running():
            nodes = self.layout.nodes()
            with images.importing(self.layout, nodes, made, programs) as names:
                return names

    def _starting(self, programs: Programs, keeper: int) -> Starting:
        return Starting(self.layout, programs, keeper, self._progress)

    def _named(self, name: str, programs: Programs) -> list[Component]:
        known = components.every(self.layout, programs)
        found = [one for one in known if name in {one.name, one.name.rpartition("/")[2]}]
        if not found:
            names = ", ".join(component.name for component in known)
            raise LocalkubeError(f"there is no component {name}; there are {names}")
        return found

    def _stop(self, wanted: list[Component]) -> None:
        for component in wanted:
            running = spaces.recall(self.layout.process(component.name))
            if running is not None:
                spaces.stop(running)

    def _found(self) -> None:
        """The files of a new cluster, where a former one may have been."""
        self._end()
        layout = self.layout
        _empty(layout)
        layout.marker.write_text("hack/localkube empties this folder\n")
        for folder in (layout.logs, layout.processes, layout.sysctls):
            folder.mkdir()
        certificates.make(layout)
        layout.scheduler.write_text(configs.scheduler(layout, configs.PLAIN_SCHEDULER))
        layout.corefile.write_text(configs.corefile(layout))
        layout.resolv_conf.write_text(configs.resolv_conf())
        for name, value in configs.SYSCTLS.items():
            layout.sysctl(name).write_text(f"{value}\n")

    def _end(self) -> None:
        spaces.end(self.layout)
        cgroups.remove(self.layout.cgroup)

    @contextlib.contextmanager
    def _running(self) -> Iterator[int]:
        """The keeper's pid, while nobody else changes the cluster."""
        spaces.running(self.layout)
        with self._exclusively():
            yield spaces.running(self.layout)

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One command at a time changes the cluster."""
        state = self.layout.state
        while True:
            state.mkdir(parents=True, exist_ok=True)
            folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
            try:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._progress.say(f"waiting for another hack/localkube that changes {state}")
                    fcntl.flock(folder, fcntl.LOCK_EX)
                if state.exists() and os.path.samestat(state.stat(), os.fstat(folder)):
                    yield
                    return  # otherwise `down` has removed the folder meanwhile
            finally:
                os.close(folder)


def _check(layout: Layout) -> None:
    """Whether a cluster can be made there."""
    state = layout.state
    if os.geteuid() != 0:
        raise LocalkubeError("a cluster needs root: run hack/localkube as root")
    hidden = [path for path in mounts.HIDDEN if state.is_relative_to(path)]
    if hidden:
        raise LocalkubeError(f"{state} cannot hold the state: each node has its own {hidden[0]}")
    if len(str(layout.keeper)) > _SOCKET_PATH_MAX:
        raise LocalkubeError(f"{state} cannot hold the state: its path is too long for a socket")
    if state.exists() and any(state.iterdir()) and not layout.marker.exists():
        raise LocalkubeError(f"{state} holds other files: name an empty folder in TANDEM_LOCALKUBE")


def _empty(layout: Layout) -> None:
    """The marker goes last: a folder that is emptied by half is still a cluster's."""
    for path in layout.state.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != layout.marker:
            path.unlink()
    layout.marker.unlink(missing_ok=True)


def _scheduler_config(path: Path) -> dict[str, Any]:
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as exc:
        raise LocalkubeError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(given, dict) or given.get("kind") != "KubeSchedulerConfiguration":
        raise LocalkubeError(f"{path} holds no KubeSchedulerConfiguration")
    return given
