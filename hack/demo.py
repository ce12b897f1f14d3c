"""A real vLLM and a real trainer take turns on one simulated GPU; or, to compare, do not need to.

On this machine, or as pods of a Kubernetes that is started on it (hack/cluster_demo.py). Exit
status 0 only if every check held; each that did not is one sentence.
"""

import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from claim_phases.phases import Phase
from hack import cluster_demo
from hack.demo_outcome import Done, judged
from tandem import figures, local
from tandem.config import ConfigError, LocalConfig, TenantConfig, load
from tandem.local import RunError
from tandem.run_files import Run

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "manifests" / "examples" / "trl-grpo"
TRAINER: Final = "trainer"

ROOM: Final = 64 << 20
"""On the device that is big enough for both: bytes beside the sum of their needs."""


@dataclass(frozen=True)
class Way:
    """One way to run the job: `devices` and their sizes, and who uses which."""

    name: str
    config: LocalConfig


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--compare", is_flag=True, help="The same job in two more ways: must learn the same.")
@click.option(
    "--cluster",
    is_flag=True,
    help="As pods of a Kubernetes on this machine. Needs root, and once six minutes to build.",
)
@click.option("--keep", is_flag=True, help="Leave the cluster up.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Iterations; the example's, if not given. With few the reward cannot rise as it must.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the runs' folders go; a new folder for temporary files, if not given.",
)
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("--job", type=click.Path(path_type=Path), default=EXAMPLE / "local.yaml", hidden=True)
@click.option("--arbiter", help="Another command for the node's arbiter.", hidden=True)
def main(
    compare: bool,
    cluster: bool,
    keep: bool,
    steps: int | None,
    seed: int,
    out: Path | None,
    output: str,
    job: Path,
    arbiter: str | None,
) -> None:
    """Run the example job, watch it, judge it.

    \b
    hack/demo                on this machine, in a namespace of its own
    hack/demo --cluster      the same with claims, driver, extender and pods: installs Tandem from
                             manifests/overlays/local on the cluster of hack/localkube, then the
                             example there; takes the cluster down again, if not told to --keep it
    """
    if cluster and (compare or arbiter):
        raise click.UsageError("--cluster runs the job one way")
    if keep and not cluster:
        raise click.UsageError("--keep is for --cluster")
    console = Console(stderr=output == "json")
    try:
        out = out or Path(tempfile.mkdtemp(prefix="tandem-demo-"))
        if cluster:
            way, shown = out / cluster_demo.NAME, Console(stderr=True)
            done = [cluster_demo.run(way, steps, seed, keep, shown)]
        else:
            config = placed(load(job), tiny_model(seed), steps, seed)
            command = local.ARBITER if arbiter is None else shlex.split(arbiter)
            done = all_ways(ways(config, compare), out, job.parent, command)
    except (ConfigError, RunError) as exc:
        raise click.ClickException(str(exc)) from exc
    failures = [
        f"{one.name}: {failure}" if compare else failure for one in done for failure in one.failures
    ]
    for one in done:
        one.show(console)
    if cluster:
        cluster_demo.show(console, done[0], keep)
    if compare:
        failures += different(done)
        console.print("Three ways, devices x wall time (simulated devices, at a CPU's speed)")
        console.print(compared(done))
    for failure in failures:
        console.print(f"failed: {failure}", style="bold red", markup=False, highlight=False)
    if not failures:
        console.print("every check held", style="green")
    if output == "json":
        told = done[0].to_json() | {"failures": failures}
        if compare:
            told |= {"ways": {one.name: one.to_json() for one in done}}
        click.echo(json.dumps(told))
    ended = [128 + one.signal for one in done if one.signal is not None]
    sys.exit(ended[0] if ended else bool(failures))


def tiny_model(seed: int) -> Path:
    """The model to start from, made once for each content of its script. Raises RunError."""
    script = EXAMPLE / "tiny_model.py"
    key = hashlib.sha256(script.read_bytes() + str(seed).encode()).hexdigest()[:12]
    if "TANDEM_CACHE" not in os.environ:
        raise RunError("TANDEM_CACHE is not set: start with hack/demo, which sets it")
    model = Path(os.environ["TANDEM_CACHE"]) / f"model-{key}"
    if not model.is_dir():
        click.echo(f"the tiny model, once: {model}", err=True)
        with tempfile.TemporaryDirectory(dir=model.parent) as making:
            made = Path(making) / "model"
            command = [sys.executable, str(script), str(made), "--seed", str(seed)]
            subprocess.run(command, check=True)
            shutil.move(made, model)
    return model


def placed(config: LocalConfig, model: Path, steps: int | None, seed: int) -> LocalConfig:
    """The example with its model where it was made, on free ports, with these steps and seed."""
    ports = {
        port: free_port()
        for tenant in config.tenants.values()
        for port in (tenant.listen, tenant.engine_port)
        if port is not None
    }
    arguments = ["--seed", str(seed)] + ([] if steps is None else ["--steps", str(steps)])
    tenants = {}
    for name, tenant in config.tenants.items():
        command = list(tenant.command)
        command[command.index("--model") + 1] = str(model)
        for port, free in ports.items():
            command = [re.sub(rf"(?<=[:=]){port}$", str(free), argument) for argument in command]
        command += arguments if name == TRAINER else []
        update: dict[str, Any] = {"command": command}
        if tenant.listen is not None and tenant.engine_port is not None:
            update |= {
                "listen": ports[tenant.listen],
                "engine_port": ports[tenant.engine_port],
            }
        tenants[name] = tenant.model_copy(update=update)
    return config.model_copy(update={"tenants": tenants})


def free_port() -> int:
    """A port where nobody listens, below those that the kernel gives to clients.

    Drawn anew for each demo: an engine opens its port long after the run began, and two runs side
    by side must not find each other's engine there.
    """
    while not local.port_is_free(port := 20_000 + secrets.randbelow(12_000)):
        pass
    return port


def ways(config: LocalConfig, compare: bool) -> Iterator[Way]:
    """In turn on one device; side by side on a bigger one; each on one of its own."""
    yield Way("turns", config)
    if not compare:
        return
    tenants = config.tenants
    (device, size), *_ = config.devices.items()
    together = sum(tenant.need for tenant in tenants.values()) + ROOM
    yield Way("resident", _with(config, {device: together}, dict.fromkeys(tenants, device)))
    own = {name: f"gpu{number}" for number, name in enumerate(tenants)}
    yield Way("disaggregated", _with(config, dict.fromkeys(own.values(), size), own))


def _with(config: LocalConfig, devices: Mapping[str, int], of: Mapping[str, str]) -> LocalConfig:
    tenants: dict[str, TenantConfig] = {
        name: tenant.model_copy(update={"devices": [of[name]]})
        for name, tenant in config.tenants.items()
    }
    return config.model_copy(update={"devices": dict(devices), "tenants": tenants})


def all_ways(ways: Iterable[Way], out: Path, folder: Path, arbiter: Sequence[str]) -> list[Done]:
    """Run the job each way, until one shows that no further one can make it right."""
    done: list[Done] = []
    for way in ways:
        done.append(run(way, out / way.name, folder, arbiter))
        if done[-1].signal is not None or any(different(done)):
            break
    return done


def run(way: Way, out: Path, folder: Path, arbiter: Sequence[str]) -> Done:
    """Run the job one way and check it. Raises RunError if it could not be started."""
    devices = ", ".join(f"{name} {figures.mib(size)}" for name, size in way.config.devices.items())
    click.echo(f"{way.name}: {devices} (simulated), folder {out}", err=True)
    console = Console(stderr=True)
    result = local.run(way.config, out, folder=folder, console=console, arbiter=arbiter)
    done = judged(way.name, way.config.devices, out, result.failures, result.signal)
    if way.name == "turns" or done.run is None:
        return done
    return replace(done, failures=(*done.failures, *needless(done.run)))


def needless(run: Run) -> Iterator[str]:
    """Whether somebody parked where there was room for all."""
    if parked := {change.tenant for change in run.changes if change.after is Phase.RELEASING}:
        yield f"{' and '.join(sorted(parked))} parked although there was room for all"


def different(done: Sequence[Done]) -> Iterator[str]:
    """A sentence for each way that did not learn the same as the first, to the last digit."""
    first, *others = done
    reference = learned(first)
    for other in others:
        told = learned(other)
        if len(told) != len(reference):
            yield (
                f"{other.name}: {len(told)} iterations, {first.name}: {len(reference)}:"
                " they cannot be compared"
            )
        for number in sorted(reference.keys() & told.keys()):
            if told[number] != reference[number]:
                yield (
                    f"{other.name}: iteration {number} has reward and loss {told[number]},"
                    f" {first.name} has {reference[number]}: they must be equal"
                )
                break


def learned(done: Done) -> dict[int, tuple[float | None, float | None]]:
    """Reward and loss by iteration."""
    progress = () if done.run is None else done.run.progress
    return {one.iteration: (one.reward, one.loss) for one in progress}


def compared(done: Sequence[Done]) -> Table:
    """Devices by wall time, as a table."""
    table = Table()
    for heading in ("way", "devices", "MiB", "wall s", "device s", "s/iteration"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for one in done:
        devices = one.devices
        table.add_row(
            one.name,
            str(len(devices)),
            f"{sum(devices.values()) >> 20}",
            f"{one.wall_s:.1f}",
            f"{one.device_s:.1f}",
            f"{iteration_s(one):.2f}",
        )
    return table


def iteration_s(done: Done) -> float:
    """Mean seconds from one iteration's end to the next one's: without the engine's start."""
    ends = [] if done.run is None else [one.t for one in done.run.progress]
    return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else math.nan


if __name__ == "__main__":
    main(prog_name="hack/demo")
