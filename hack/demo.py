"""A real vLLM and a real trainer take turns on one simulated GPU; or, to compare, do not need to.

Exit status 0 only if every check held; each that did not is one sentence.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from claim_phases.phases import Phase
from tandem import figures, local, results, run_files
from tandem.config import ConfigError, LocalConfig, TenantConfig, load
from tandem.local import RunError
from tandem.report import Report
from tandem.run_files import Run, RunFileError

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "manifests" / "examples" / "trl-grpo"
TRAINER: Final = "trainer"

REWARD_MARGIN: Final = 0.4
"""How much the mean reward of the last five iterations must exceed that of the first five."""

WEIGHTS_TOLERANCE: Final = 1e-4
"""The largest weights_check: nats a token. Weights one update older were seen to differ by more."""

ROOM: Final = 64 << 20
"""On the device that is big enough for both: bytes beside the sum of their needs."""


@dataclass(frozen=True)
class Way:
    """One way to run the job: `devices` and their sizes, who uses which, whose seed differs."""

    name: str
    config: LocalConfig


@dataclass(frozen=True)
class Done:
    """A run, and each check that failed as one sentence. `report`: None if there was no run."""

    way: Way
    folder: Path
    run: Run | None
    report: Report | None
    failures: tuple[str, ...]
    signal: int | None

    @property
    def wall_s(self) -> float:
        """Seconds from the run's first record to its last; not a number without a report."""
        return math.nan if self.report is None else self.report.wall_s

    @property
    def device_s(self) -> float:
        """Devices x wall time, in seconds."""
        return len(self.way.config.devices) * self.wall_s

    def to_json(self) -> dict[str, Any]:
        """The report's figures, the failures and the folder."""
        told = {} if self.report is None else self.report.to_json()
        if self.report is not None:
            told["device_s"] = round(self.device_s, 3)
        return told | {
            "sampling_interval_ms": local.SAMPLING_MS,
            "weights_tolerance": WEIGHTS_TOLERANCE,
            "failures": list(self.failures),
            "folder": str(self.folder),
        }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--compare", is_flag=True, help="The same job in two more ways: must learn the same.")
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
@click.option("--perturb", is_flag=True, help="Another seed in one of the ways.", hidden=True)
@click.option("--arbiter", help="Another command for the node's arbiter.", hidden=True)
def main(
    compare: bool,
    steps: int | None,
    seed: int,
    out: Path | None,
    output: str,
    job: Path,
    perturb: bool,
    arbiter: str | None,
) -> None:
    """Run the example job, watch it, judge it."""
    console = Console(stderr=output == "json")
    try:
        config = placed(load(job), tiny_model(seed), steps, seed)
        out = out or Path(tempfile.mkdtemp(prefix="tandem-demo-"))
        done = []
        command = local.ARBITER if arbiter is None else shlex.split(arbiter)
        for way in ways(config, seed, compare, perturb):
            done.append(run(way, out / way.name, job.parent, command))
            if done[-1].signal is not None or any(different(done)):
                break  # no further way can make it right
    except (ConfigError, RunError) as exc:
        raise click.ClickException(str(exc)) from exc
    failures = [
        f"{one.way.name}: {failure}" if compare else failure
        for one in done
        for failure in one.failures
    ]
    for one in done:
        show(console, one)
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
            told |= {"ways": {one.way.name: one.to_json() for one in done}}
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


def ways(config: LocalConfig, seed: int, compare: bool, perturb: bool) -> Iterator[Way]:
    """In turn on one device; side by side on a bigger one; each on one of its own."""
    yield Way("turns", config)
    if not compare:
        return
    tenants = config.tenants
    (device, size), *_ = config.devices.items()
    together = sum(tenant.need for tenant in tenants.values()) + ROOM
    resident = _with(config, {device: together}, dict.fromkeys(tenants, device))
    if perturb:
        trainer = tenants[TRAINER]
        command = [*trainer.command, "--seed", str(seed + 1)]
        other = trainer.model_copy(update={"command": command})
        resident = resident.model_copy(update={"tenants": {**resident.tenants, TRAINER: other}})
    yield Way("resident", resident)
    own = {name: f"gpu{number}" for number, name in enumerate(tenants)}
    yield Way("disaggregated", _with(config, dict.fromkeys(own.values(), size), own))


def _with(config: LocalConfig, devices: Mapping[str, int], of: Mapping[str, str]) -> LocalConfig:
    tenants: dict[str, TenantConfig] = {
        name: tenant.model_copy(update={"devices": [of[name]]})
        for name, tenant in config.tenants.items()
    }
    return config.model_copy(update={"devices": dict(devices), "tenants": tenants})


def run(way: Way, out: Path, folder: Path, arbiter: Sequence[str]) -> Done:
    """Run the job one way and check it. Raises RunError if it could not be started."""
    devices = ", ".join(f"{name} {figures.mib(size)}" for name, size in way.config.devices.items())
    click.echo(f"{way.name}: {devices} (simulated), folder {out}", err=True)
    console = Console(stderr=True)
    result = local.run(way.config, out, folder=folder, console=console, arbiter=arbiter)
    try:
        report = results.evaluate(out)
        files = run_files.read_run(out)
    except RunFileError as exc:
        return Done(way, out, None, None, (*result.failures, str(exc)), result.signal)
    failures = (*result.failures, *report.violations, *checks(way, files, report))
    return Done(way, out, files, report, failures, result.signal)


def checks(way: Way, files: Run, report: Report) -> Iterator[str]:
    """What must hold beside the verdict."""
    first, last = report.reward_first, report.reward_last
    if first is None or last is None:
        yield "no iteration ended: there is no reward"
    elif not last - first >= REWARD_MARGIN:
        yield f"the reward rose by {last - first:.3f}, less than {REWARD_MARGIN}"
    for one in files.progress:
        difference = one.weights_check
        if difference is None or not difference <= WEIGHTS_TOLERANCE:
            yield (
                f"in iteration {one.iteration} the engine did not serve the published weights"
                f" (version {one.weights_version}): its log-probabilities differ from the"
                f" trainer's by {difference} a token, more than {WEIGHTS_TOLERANCE}"
            )
            break
    if way.name != "turns" and (
        parked := {change.tenant for change in files.changes if change.after is Phase.RELEASING}
    ):
        yield f"{' and '.join(sorted(parked))} parked although there was room for all"


def different(done: Sequence[Done]) -> Iterator[str]:
    """A sentence for each way that did not learn the same as the first, to the last digit."""
    first, *others = done
    reference = learned(first)
    for other in others:
        told = learned(other)
        if len(told) != len(reference):
            yield (
                f"{other.way.name}: {len(told)} iterations, {first.way.name}: {len(reference)}:"
                " they cannot be compared"
            )
        for number in sorted(reference.keys() & told.keys()):
            if told[number] != reference[number]:
                yield (
                    f"{other.way.name}: iteration {number} has reward and loss {told[number]},"
                    f" {first.way.name} has {reference[number]}: they must be equal"
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
        devices = one.way.config.devices
        table.add_row(
            one.way.name,
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


def show(console: Console, done: Done) -> None:
    """The figures and where they lie."""
    if done.report is not None:
        done.report.render(console)
    console.print(
        f"observer: a sample every {local.SAMPLING_MS} ms; weights check: at most"
        f" {WEIGHTS_TOLERANCE} nats a token",
        highlight=False,
    )
    console.print(f"{done.folder}: timeline.html, timeline.perfetto.json, report.json, logs")


if __name__ == "__main__":
    main(prog_name="hack/demo")
