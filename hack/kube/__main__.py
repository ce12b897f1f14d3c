"""A real Kubernetes on this machine. Exit status: 0 done, 1 not; `kubectl` and `exec`: theirs."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from hack.kube import spaces
from hack.kube.errors import LocalkubeError
from hack.kube.layout import NODES_MAX, Layout

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster

_STATE: Final = "/var/lib/tandem-localkube"
_VERBATIM: Final = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""For commands whose arguments are another program's."""


class _Group(click.Group):
    """Tells errors in words."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LocalkubeError as exc:
            raise click.ClickException(str(exc)) from exc


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """A real Kubernetes on this machine, built from package registries.

    It lives in namespaces of its own; `down` leaves nothing of it. TANDEM_LOCALKUBE names the
    folder with all of its state (/var/lib/tandem-localkube, if it is not set).
    """
    # In order, as for Ctrl-C: what is half up is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    state = Path(os.environ.get("TANDEM_LOCALKUBE") or _STATE).absolute()
    context.obj = Layout(state)


def _cluster(layout: Layout) -> "Cluster":
    """With all that it takes to change it, which `kubectl` and `exec` start without: they are run
    by the hundred.
    """
    from hack.kube.cluster import Cluster
    from hack.kube.progress import Progress

    return Cluster(layout, Progress())


@main.command()
@click.option(
    "--nodes", type=click.IntRange(1, NODES_MAX), default=1, show_default=True, help="At least."
)
@click.pass_obj
def up(layout: Layout, nodes: int) -> None:
    """Start the cluster, or what of it does not run; return when it can be used."""
    _cluster(layout).up(nodes)
    click.echo("the cluster is up; look around with hack/localkube kubectl get pods -A")


@main.command()
@click.pass_obj
def build(layout: Layout) -> None:
    """Build what `up` needs and is not there yet; it takes minutes, once."""
    _cluster(layout).build()


@main.command()
@click.pass_obj
def down(layout: Layout) -> None:
    """End the cluster, and remove all that there is of it."""
    _cluster(layout).down()


@main.command("status")
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.pass_obj
def status_command(layout: Layout, output: str) -> None:
    """Say what runs. Exit status 0 if everything does."""
    from rich.console import Console

    from hack.kube import status

    found = status.read(layout)
    if output == "json":
        click.echo(json.dumps(found.to_json()))
    else:
        Console().print(found.shown())
    sys.exit(0 if found.up else 1)


@main.command(context_settings=_VERBATIM)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def kubectl(layout: Layout, arguments: tuple[str, ...]) -> None:
    """Run kubectl as the cluster's administrator, here: with the files of this machine."""
    spaces.join_network(spaces.running(layout))
    _become(layout, "kubectl", *arguments)


@main.command("exec", context_settings=_VERBATIM)
@click.option("--node", "number", type=int, default=1, show_default=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def execute(layout: Layout, number: int, command: tuple[str, ...]) -> None:
    """Run COMMAND as a process of a node: its network, processes and files."""
    _become(layout, *spaces.entering(spaces.inside(layout, number), command, folder=Path.cwd()))


@main.command()
@click.argument("name")
@click.pass_obj
def restart(layout: Layout, name: str) -> None:
    """Restart the components NAME: `kubelet` is every node's, `node2/kubelet` one."""
    _cluster(layout).restart(name)


@main.command()
@click.argument("name")
@click.pass_obj
def stop(layout: Layout, name: str) -> None:
    """Stop the components NAME, until `up` or `restart`."""
    _cluster(layout).stop(name)


@main.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def scheduler(layout: Layout, file: Path | None) -> None:
    """Run kube-scheduler with the KubeSchedulerConfiguration in FILE; without FILE: a plain one."""
    _cluster(layout).schedule_with(file)


@main.command()
@click.pass_obj
def images(layout: Layout) -> None:
    """Build the images anew, and import those that changed."""
    for name in _cluster(layout).import_images():
        click.echo(name)


def _become(layout: Layout, *command: str) -> NoReturn:
    os.environ["KUBECONFIG"] = str(layout.kubeconfig("admin"))
    os.environ["KUBECACHEDIR"] = str(layout.state / "kubectl")
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(prog_name="hack/localkube")
