"""`hack/demo.py` run as a user runs it, and the example's job with a trainer that cheats."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "manifests" / "examples" / "trl-grpo"
CHEATS = Path(__file__).with_name("cheats")
REWARD = "the reward rose by"
"""What a run says that is too short to learn: `test_demo.py` runs one that is not."""


@dataclass(frozen=True)
class Demo:
    """How a demo ended: its exit status, the JSON object, and what a person was shown."""

    status: int
    told: dict[str, Any]
    shown: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the arbiter told."""
        lines = (Path(self.told["folder"]) / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def serious(self) -> list[str]:
        """The failures, but for those of learning too little, which begin with the way's name."""
        allowed = re.compile(rf"(\w+: )?{REWARD} ")
        return [one for one in self.told["failures"] if not allowed.match(one)]

    def failures(self, *words: str) -> list[str]:
        """The failures that hold every word."""
        return [one for one in self.told["failures"] if all(word in one for word in words)]


def demo(out: Path, *arguments: str, timeout_s: float) -> Demo:
    """Run the demo with `-o json`; its folders go to `out`."""
    command = [sys.executable, str(ROOT / "hack" / "demo.py"), "-o", "json", "--out", str(out)]
    done = subprocess.run(
        [*command, *arguments],
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.stdout, done.stderr
    return Demo(done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr)


def cheating(folder: Path, *cheats: str) -> Path:
    """A copy of the example's job whose trainer is started by the cheats; returns its YAML."""
    job = yaml.safe_load((EXAMPLE / "local.yaml").read_text())
    trainer = job["tenants"]["trainer"]
    python, script, *arguments = trainer["command"]
    starters = [str(CHEATS / cheat) for cheat in cheats]
    trainer["command"] = [python, *starters, str(EXAMPLE / script), *arguments]
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(job))
    return path
