"""hack/bench handover: the shape of its result. Its bounds want a machine that does only that."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_handover_benchmark_reports_what_it_measured() -> None:
    ended = subprocess.run(
        [sys.executable, "hack/benchmarks/handover.py", "-n", "20", "-o", "json"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in {0, 1}, ended.stderr  # 1: a bound was missed, which 20 cannot tell
    result = json.loads(ended.stdout.splitlines()[-1])
    assert {key: sorted(value) for key, value in result.items() if isinstance(value, dict)} == {
        "baseline_ms": ["p50", "p99"],
        "handover_ms": ["n", "p50", "p99"],
        "reacquire_ms": ["p50", "p99"],
        "ratio": ["p50", "p99"],
    }
    assert result["handover_ms"]["n"] == 20
    for spread in ("baseline_ms", "handover_ms", "reacquire_ms"):
        assert 0 < result[spread]["p50"] <= result[spread]["p99"]
    assert result["ratio"]["p50"] == result["handover_ms"]["p50"] / result["baseline_ms"]["p50"]
    assert result["ratio"]["p99"] == result["handover_ms"]["p99"] / result["baseline_ms"]["p99"]
    assert result["reacquire_ratio"] == (
        result["reacquire_ms"]["p50"] / result["baseline_ms"]["p50"]
    )
