"""Local runs with real processes: what is started, told, restarted, and what is left of it."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.local import LIBRARY, Restarts
from tests.contract.nobody import as_nobody

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
ENDED_S = 30.0

pytestmark = pytest.mark.skipif(LIBRARY not in os.environ, reason=f"{LIBRARY} is not set: hack/env")

PRELUDE = """
import json, mmap, os, signal, subprocess, sys
import tandem
"""

# Without tandem: a process with gRPC's threads should not fork.
HOLDER = """
import mmap, os, signal

def hold(size):
    fd = os.open(os.environ["SIMDEVICE_DIR"], os.O_TMPFILE | os.O_RDWR)
    os.posix_fallocate(fd, 0, size)
    held = mmap.mmap(fd, size)
    os.close(fd)
    return held

def detach(work):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
    os.wait()
"""


@dataclass
class Job:
    """`tandem local` with tenants of one device of 64 MiB, in a folder of its own."""

    folder: Path
    prefix: tuple[str, ...] = ()
    tenants: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def tenant(self, name: str, script: str, restart: str = "never") -> None:
        """Add a tenant that runs `script` after PRELUDE."""
        path = self.folder / f"{name}.py"
        path.write_text(PRELUDE + script)
        self.tenants[name] = {
            "devices": ["gpu0"],
            "need": "32Mi",
            "residual": "1Mi",
            "command": ["python", str(path)],
            "restart": restart,
        }

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """The runner; killed at the end if it still runs."""
        job = {"job": "toy", "devices": {"gpu0": "64Mi"}, "weights": "8Mi"}
        file = self.folder / "local.yaml"
        file.write_text(yaml.safe_dump(job | {"tenants": self.tenants}))
        command = [*self.prefix, sys.executable, "-m", "tandem", "local", str(file)]
        process = subprocess.Popen(
            [*command, "--out", str(self.out), "-o", "json"],
            env=os.environ
            | {
                "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
                "TMPDIR": str(self.folder),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def run(self) -> tuple[int, dict[str, Any], str]:
        """Exit status, the JSON object, and what a person was shown."""
        with self.started() as process:
            stdout, stderr = process.communicate(timeout=90)
        assert stdout, stderr
        return process.returncode, json.loads(stdout.splitlines()[-1]), stderr

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / name).read_text().splitlines()]


@pytest.fixture
def job() -> Iterator[Job]:
    # Not tmp_path: others than root must reach it.
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        Path(folder).chmod(0o777)
        yield Job(Path(folder))


TURNS = """
for i in range(3):
    with tandem.turn(sys.argv[0].split("/")[-1][:-3]) as turn:
        print(json.dumps({"iteration": i, "reward": i / 2, "loss": 0.5}))
"""


def two_tenants_take_turns(job: Job) -> None:
    job.tenant("a", TURNS)
    job.tenant("b", "print('no progress')\n" + TURNS)
    status, told, shown = job.run()
    assert (status, told["failures"], told["violations"]) == (0, [], []), shown
    assert told["iterations"] == 3
    assert (told["device"]["capacity"], told["device"]["simulated"]) == (64 * MIB, True)
    assert [one["reward"] for one in job.lines("progress.jsonl")].count(1.0) == 2
    assert json.loads((job.out / "run.json").read_text())["statuses"] == {"a": 0, "b": 0}
    assert (job.out / "logs" / "b.1.log").read_text().startswith("no progress\n")
    for name in ("report.json", "timeline.html", "timeline.perfetto.json"):
        assert (job.out / name).stat().st_size > 0


def test_two_tenants_take_turns_and_the_folder_holds_what_happened(job: Job) -> None:
    two_tenants_take_turns(job)


def test_an_ordinary_user_can_run_it(job: Job) -> None:
    if os.geteuid() != 0:
        pytest.skip("every test here is run by an ordinary user already")
    job.prefix = tuple(as_nobody([]))
    two_tenants_take_turns(job)


def test_without_the_right_to_make_namespaces_it_says_what_is_missing(job: Job) -> None:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("needs unshare and setpriv of util-linux")
    denied = (
        "echo 0 >/proc/sys/user/max_user_namespaces &&"
        ' exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all -- "$@"'
    )
    job.prefix = ("unshare", "--map-root-user", "sh", "-c", denied, "sh")
    job.tenant("a", TURNS)
    with job.started() as process:
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr.startswith("Error: cannot make a private PID and mount namespace: unshare: ")
    assert "user.max_user_namespaces" in stderr
    assert len(stderr.splitlines()) == 1


def test_a_tenant_that_fails_ends_the_run_and_its_last_words_are_told(job: Job) -> None:
    job.tenant("a", "print('one last thing'); sys.exit('no such model')")
    job.tenant("b", "signal.pause()")
    status, told, shown = job.run()
    assert status == 1
    assert told["failures"][0].startswith("a ended with status 1: ")
    assert "    one last thing\n" in shown
    assert "    no such model\n" in shown


def test_a_command_that_does_not_exist(job: Job) -> None:
    job.tenant("a", "")
    job.tenants["a"]["command"] = ["no-such-command"]
    status, told, _ = job.run()
    assert status == 1
    assert told["failures"][0].startswith("a ended with status 127: ")
    assert "no-such-command" in told["failures"][0]


def test_what_ended_starts_again_and_nothing_of_its_former_life_is_left(job: Job) -> None:
    os.mkfifo(job.folder / "again")
    job.tenant("a", f"print(open({str(job.folder / 'again')!r}).read())")
    heir = job.folder / "heir"
    script = f"""
try:
    former = int(open({str(heir)!r}).read())
except FileNotFoundError:
    heir = subprocess.Popen(["sleep", "1000"])
    open({str(heir)!r}, "w").write(str(heir.pid))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.kill(former, 0)
    found = "alive"
except ProcessLookupError:
    found = "gone"
open({str(job.folder / "again")!r}, "w").write(found)
signal.pause()
"""
    job.tenant("b", script, restart="always")
    status, told, shown = job.run()
    assert told["failures"] == ["no tenant ever said hello"] or status == 1
    assert (job.out / "logs" / "a.1.log").read_text() == "gone\n"
    assert "b ended with status 137; all of b starts again in 0 s" in shown
    ends = [one["status"] for one in job.lines("children.jsonl") if one["child"] == "b"]
    assert ends[:2] == [None, 137]


def test_the_arbiter_that_is_killed_starts_again(job: Job) -> None:
    script = """
with tandem.turn("a") as turn:
    before = turn.epoch
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if b"dra_driver" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0"):
            os.kill(int(pid), signal.SIGKILL)
with tandem.turn("a") as turn:
    assert turn.epoch >= before
"""
    job.tenant("a", script)
    status, told, shown = job.run()
    assert (status, told["failures"], told["violations"]) == (0, [], []), shown
    assert [one["kind"] for one in job.lines("events.jsonl")].count("start") == 2
    assert "arbiter ended with status 137; it starts again in 0 s" in shown


def test_the_observer_tells_a_tenants_memory_from_a_strangers(job: Job) -> None:
    holder = f"""
held = hold({8 * MIB})
ready, told = os.pipe()
if os.fork() == 0:
    own = hold({2 * MIB})
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)

def strange():
    mine = hold({4 * MIB})
    os.write(told, b"x")
    signal.pause()

detach(strange)
os.read(ready, 1)
samples = open("out/samples.jsonl")
samples.seek(0, os.SEEK_END)
lines = 0
while lines < 2:  # the second that ends from here on began after this
    lines += samples.read().count("\\n")
"""
    (job.folder / "holder.py").write_text(HOLDER + holder)
    script = """
with tandem.turn("a") as turn:
    subprocess.run([sys.executable, "holder.py"], check=True)
"""
    job.tenant("a", script)
    status, told, shown = job.run()
    # Shared with the child by fork, so there once; what the child took itself, and the stranger's.
    held = [one["tenants"].get("a", {}).get("gpu0", 0) for one in job.lines("samples.jsonl")]
    assert max(held) == (8 + 2) * MIB, shown
    strangers = [one["strangers"] for one in job.lines("samples.jsonl") if one["strangers"]]
    (stranger,) = strangers[-1]
    # It has its parent's mapping too, from before it went its own way.
    assert (stranger["device"], stranger["bytes"]) == ("gpu0", (8 + 4) * MIB)
    assert stranger["name"].startswith("python")
    assert status == 1
    assert any("which belongs to no tenant, held 12.0 MiB" in one for one in told["violations"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_runner_leaves_no_process_and_no_mount(
    job: Job, number: signal.Signals
) -> None:
    os.mkfifo(job.folder / "ready")
    (job.folder / "holder.py").write_text(f"{HOLDER}\ndetach(signal.pause)")
    script = f"""
subprocess.run([sys.executable, "holder.py"], check=True)
print("told before the end")
open({str(job.folder / "ready")!r}, "w").write("x")
signal.pause()
"""
    job.tenant("a", script)
    with job.started() as process:
        assert (job.folder / "ready").read_text() == "x"
        mine = [os.pidfd_open(pid) for pid in tree(process.pid)]
        # The runner's four, arbiter, observer, tenant, and the one that went its own way.
        assert len(mine) == 8
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    for pidfd in mine:
        ended, _, _ = select.select([pidfd], [], [], ENDED_S)
        assert ended, "a process outlived the run"
        os.close(pidfd)
    assert str(job.folder) not in Path("/proc/mounts").read_text()
    assert "/tandem-" not in Path("/proc/mounts").read_text()
    assert (job.out / "logs" / "a.1.log").read_text() == "told before the end\n"
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number, stderr
        assert f"ended by {number.name}" in json.loads(stdout.splitlines()[-1])["failures"]
        assert not list(job.folder.glob("tandem-*"))


def tree(root: int) -> list[int]:
    """The process and its descendants, in the namespaces below too."""
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = (process / "stat").read_text()
                parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def test_restarts_wait_longer_each_time_and_end() -> None:
    restarts = Restarts(limit=4, healthy_s=10.0)
    assert [restarts.after(1.0) for _ in range(5)] == [0.0, 1.0, 2.0, 4.0, None]


def test_who_lived_long_enough_counts_as_new() -> None:
    restarts = Restarts(limit=2, healthy_s=10.0)
    assert [restarts.after(lived_s) for lived_s in (1.0, 1.0, 10.0, 1.0, 1.0)] == [
        0.0,
        1.0,
        0.0,
        1.0,
        None,
    ]


def test_a_port_that_somebody_listens_on_is_refused_at_once(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job.tenant("a", TURNS)
        job.tenants["a"] |= {"engine": "vllm", "listen": port, "engine_port": port + 1}
        with job.started() as process:
            stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr == (
        f"Error: tenants.a.listen: port {port} of 127.0.0.1 is in use: stop who listens there,"
        " or name another\n"
    )
