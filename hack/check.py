"""All static checks: format, lint, types, import contracts, generated code, lock, shell syntax.

Each prints a line with its time as it ends; the output of those that failed follows at the end.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASH = b"#!/usr/bin/env bash"
SHELL_SYNTAX = 'for script; do bash -n "$script" || bad=1; done; exit ${bad:-0}'


@dataclass(frozen=True)
class Outcome:
    name: str
    failed: bool
    seconds: float
    output: str


def shell_scripts() -> list[str]:
    files = [path for folder in ("hack", ".ci") for path in sorted((ROOT / folder).rglob("*"))]
    return [str(path) for path in files if path.is_file() and path.read_bytes().startswith(BASH)]


def checks() -> dict[str, list[str]]:
    """Name to command, the slowest first: they run side by side."""
    cache = os.environ["TANDEM_CACHE"]
    return {
        "types": ["mypy"],
        "imports": ["lint-imports", "--cache-dir", f"{cache}/import-linter"],
        "format": ["ruff", "format", "--check", "."],
        "lint": ["ruff", "check", "--output-format", "concise", "."],
        "generated": [sys.executable, "hack/generate.py", "--check"],
        "lock": [sys.executable, "hack/lock.py", "--check"],
        "shell": ["bash", "-c", SHELL_SYNTAX, "bash", *shell_scripts()],
    }


def run(name: str, command: list[str]) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return Outcome(name, done.returncode != 0, time.monotonic() - began, done.stdout)


def main() -> int:
    failures = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for future in as_completed([pool.submit(run, *check) for check in checks().items()]):
            outcome = future.result()
            word = "FAILED" if outcome.failed else "ok"
            print(f"{word:6}  {outcome.name:9}  {outcome.seconds:5.1f} s", flush=True)
            if outcome.failed:
                failures.append(outcome)
    for outcome in failures:
        print(f"\n{outcome.name}:\n{outcome.output.rstrip()}")
    if failures:
        print(f"\nhack/check: failed: {', '.join(outcome.name for outcome in failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
