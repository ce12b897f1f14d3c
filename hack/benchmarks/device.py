"""What the simulated device costs: torch blocks of 1 MiB, allocated, written and freed.

    hack/bench device [-o json]

Plain torch and torch on the device run in turns, in two processes, so that a noisy machine
disturbs both. Plain torch gets its blocks from malloc, which keeps and reuses what was freed; the
device takes new pages each time and gives them back, which is what makes its usage exact.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from tests.contract import simdevice_env

ROUNDS, PER_ROUND = 10, 200
DEVICE_BYTES = 64 << 20

# One round for each line on stdin; answers with its durations in nanoseconds.
MEASURE = f"""
import json, sys, time
import torch
for _ in sys.stdin:
    took = []
    for _ in range({PER_ROUND}):
        start = time.perf_counter_ns()
        block = torch.empty(1 << 20, dtype=torch.uint8).fill_(1)
        del block
        took.append(time.perf_counter_ns() - start)
    print(json.dumps(took), flush=True)
"""


def round_of(program: "subprocess.Popen[str]") -> list[int]:
    """One round's durations, ns."""
    assert program.stdin is not None
    assert program.stdout is not None
    print(file=program.stdin, flush=True)
    answer = program.stdout.readline()
    if not answer:
        raise RuntimeError("a measuring process ended early: see its message above")
    return [int(ns) for ns in json.loads(answer)]


def percentiles(ns: list[int]) -> dict[str, float]:
    """Microseconds, nearest rank."""
    ordered = sorted(ns)
    return {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] / 1e3 for p in (50, 99)}


def measure(folder: Path) -> tuple[list[int], list[int]]:
    """Durations in ns: plain, simulated."""
    directory = folder / "gpu0"
    directory.mkdir()
    library = simdevice_env.library(folder)
    argv = simdevice_env.python(MEASURE, preload=library)
    commands = (
        simdevice_env.python(MEASURE),
        simdevice_env.on_device(directory, DEVICE_BYTES, argv),
    )
    took: tuple[list[int], list[int]] = ([], [])
    programs = [
        subprocess.Popen(
            command,
            env=simdevice_env.environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for warm in range(ROUNDS + 1):
            for program, durations in zip(programs, took, strict=True):
                of_round = round_of(program)
                if warm:
                    durations.extend(of_round)
    finally:
        for program in programs:
            program.communicate()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", choices=["json"], dest="output", help="one JSON object")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        plain_ns, simulated_ns = measure(Path(folder))
    plain, simulated = percentiles(plain_ns), percentiles(simulated_ns)
    ratio = {p: round(simulated[p] / plain[p], 2) for p in plain}
    result = {
        "plain_us": plain,
        "simulated_us": simulated,
        "ratio": ratio,
        "n": len(plain_ns),
        "simulated": True,
    }
    if output == "json":
        print(json.dumps(result))
        return
    print(f"torch block of 1 MiB: allocate, write, free (simulated device, n = {len(plain_ns)})")
    print(f"{'':16}{'p50':>10}{'p99':>10}")
    print(f"{'plain torch':16}{plain['p50']:>7.0f} us{plain['p99']:>7.0f} us")
    print(f"{'on the device':16}{simulated['p50']:>7.0f} us{simulated['p99']:>7.0f} us")
    print(f"{'ratio':16}{ratio['p50']:>10}{ratio['p99']:>10}")


if __name__ == "__main__":
    main()
