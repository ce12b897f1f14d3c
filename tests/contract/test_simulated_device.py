"""The simulated device under real allocations, each test on a tmpfs of its own.

The tests run programs: under the library, or beside one that is. Most take torch's allocator
(libc10.so) by ctypes, which is what torch itself calls; importing torch would take seconds.
"""

import importlib.util
import json
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.contract import simdevice_env

MIB = 1 << 20
SIZE = 64 * MIB

PRELUDE = """
import ctypes, json, mmap, os, random, signal, subprocess, sys, threading
from pathlib import Path
from dra_driver.devices import covered
from dra_driver.devices.simulated import SimulatedDevice

MIB = 1 << 20
DEVICE = SimulatedDevice("gpu0", Path(os.environ["SIMDEVICE_DIR"]))
libc = ctypes.CDLL(None, use_errno=True)
libc.realloc.restype, libc.realloc.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.malloc_usable_size.restype = ctypes.c_size_t
libc.malloc_usable_size.argtypes = [ctypes.c_void_p]

def used():
    return DEVICE.read().used

def holders():
    return {pid: sum(map(covered, blocks.values())) for pid, blocks in DEVICE.holders().items()}
"""

C10 = """
c10 = ctypes.CDLL(os.environ["LIBC10"])
alloc, dealloc = c10._ZN3c109alloc_cpuEm, c10._ZN3c108free_cpuEPv
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
dealloc.argtypes = [ctypes.c_void_p]

def filled(n, byte):
    block = alloc(n)
    ctypes.memset(block, byte, n)
    return block

def holds(block, n, byte):
    return ctypes.string_at(block, n) == bytes([byte]) * n
"""


def libc10() -> str:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return str(Path(torch.origin).with_name("lib") / "libc10.so")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simdevice_env.library(tmp_path_factory.mktemp("simdevice"))


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(library: Path, tmp_path: Path) -> Run:
    """Runs a program on a device; `preload` False: a program that only looks on."""

    def run(
        source: str,
        *,
        size: int = SIZE,
        preload: bool = True,
        status: int = 0,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 100,
    ) -> subprocess.CompletedProcess[str]:
        directory = tmp_path / "gpu0"
        directory.mkdir(exist_ok=True)
        program = simdevice_env.python(PRELUDE + source, library if preload else None)
        done = subprocess.run(
            simdevice_env.on_device(directory, size, program),
            env=simdevice_env.environment(
                directory, extra={"LIBC10": libc10(), "LIBRARY": str(library), **(env or {})}
            ),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    return run


# ---- torch ----


def test_torch_storages_are_the_device_usage(run: Run) -> None:
    run("""
import torch
assert used() == 0, used()
held = [torch.empty(n, dtype=torch.uint8) for n in (MIB, 3 * MIB + 1, 65536)]
assert used() == MIB + (3 * MIB + 4096) + 65536, used()
del held[1]
assert used() == MIB + 65536, used()
storage = held[0].untyped_storage()
storage.resize_(0)
assert used() == 65536, used()
storage.resize_(MIB)
assert used() == MIB + 65536, used()
held.clear()
del storage
assert used() == 0, used()
""")


def test_full_device_is_torch_out_of_memory_and_takes_nothing(run: Run) -> None:
    done = run("""
import torch
first = torch.full((48 * MIB,), 7, dtype=torch.uint8)
try:
    torch.empty(32 * MIB, dtype=torch.uint8)
except RuntimeError as exc:
    assert "can't allocate memory" in str(exc), exc
else:
    raise SystemExit("allocated more than the device has")
assert used() == 48 * MIB, used()
rest = torch.empty(16 * MIB, dtype=torch.uint8)
assert used() == DEVICE.read().total == 64 * MIB
assert int(first.min()) == int(first.max()) == 7
del first, rest
assert used() == 0, used()
""")
    assert "simdevice" not in done.stderr  # the caller's own error says it


def test_what_is_kept_in_reserve_is_nobodys(run: Run) -> None:
    """Room is given by the total: what it lacks stays free, and is there for torch all the same."""
    run("""
import torch
keeps = SimulatedDevice("gpu0", Path(os.environ["SIMDEVICE_DIR"]), 16 * MIB)
held = torch.ones(56 * MIB, dtype=torch.uint8)
assert (keeps.read().used, keeps.read().total) == (56 * MIB, 48 * MIB)
assert DEVICE.read().total == 64 * MIB
""")


def test_only_what_torch_asks_for_is_device_memory(run: Run) -> None:
    run("""
import numpy
held = numpy.ones(4 * MIB, dtype=numpy.uint8)
block = ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(block), 64, 4 * MIB) == 0
assert used() == 0, used()
libc.free(block)
""")


# ---- blocks ----


def test_blocks_just_under_and_over_the_threshold(run: Run) -> None:
    run(
        C10
        + """
for n, expected in ((65535, 0), (65536, 65536), (65537, 65536 + 4096)):
    block = filled(n, 1)
    assert used() == expected, (n, used())
    dealloc(block)
    assert used() == 0, (n, used())
"""
    )


def test_addresses_and_room_are_used_again(run: Run) -> None:
    # 40 times the device: each size class reserves addresses for four times the device
    run(
        C10
        + """
for turn in range(40):
    blocks = [filled(n * MIB - 1, turn) for n in (1, 3, 5, 7, 16, 32)]
    assert used() == 64 * MIB, used()
    assert len(set(blocks)) == 6
    if turn:
        assert set(blocks) == before
    before = set(blocks)
    for block in blocks:
        dealloc(block)
    assert used() == 0, used()
"""
    )


def test_usable_size_and_realloc(run: Run) -> None:
    run(
        C10
        + """
block = filled(MIB + 1, 5)
assert libc.malloc_usable_size(block) == MIB + 4096
same = libc.realloc(block, MIB + 4096)
assert same == block
larger = libc.realloc(block, 2 * MIB)
assert used() == 2 * MIB and holds(larger, MIB + 1, 5)
smaller = libc.realloc(larger, 100_000)
assert used() == 102_400 and holds(smaller, 100_000, 5)
assert libc.realloc(smaller, 128 * MIB) is None and ctypes.get_errno() == 12  # ENOMEM
assert used() == 102_400 and holds(smaller, 100_000, 5)
on_host = libc.realloc(smaller, 1000)
assert used() == 0 and holds(on_host, 1000, 5)
libc.free(on_host)
assert libc.realloc(filled(MIB, 1), 0) is None and used() == 0
"""
    )


def test_freeing_twice_ends_the_process_with_a_line(run: Run) -> None:
    done = run(C10 + "block = alloc(MIB); dealloc(block); dealloc(block)", status=-signal.SIGABRT)
    assert "no such block, or freed already" in done.stderr


def test_many_threads(run: Run) -> None:
    run(
        C10
        + """
failures = []

def work(seed):
    rng, mine = random.Random(seed), []
    for _ in range(300):
        if len(mine) == 4 or (mine and rng.random() < 0.5):
            block, n = mine.pop(rng.randrange(len(mine)))
            if not holds(block, n, seed):
                failures.append((seed, n))
            dealloc(block)
        else:
            n = rng.randrange(60_000, MIB)
            mine.append((filled(n, seed), n))
    for block, n in mine:
        if not holds(block, n, seed):
            failures.append((seed, n))
        dealloc(block)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert used() == 0, used()
"""
    )


# ---- processes ----


def test_memory_is_back_after_sigkill(run: Run) -> None:
    run(
        """
child = subprocess.Popen([sys.executable, "-c", '''
import torch
held = torch.ones(32 << 20, dtype=torch.uint8)
print("holds", flush=True)
input()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    env=os.environ | {"LD_PRELOAD": os.environ["LIBRARY"]})
assert child.stdout.readline() == b"holds\\n"
assert used() == 32 * MIB, used()
assert holders() == {child.pid: 32 * MIB}
child.kill()
child.wait()
assert used() == 0, used()
assert holders() == {}
""",
        preload=False,
    )


def test_fork_child_frees_its_own_mapping_only(run: Run) -> None:
    run(
        C10
        + """
block = filled(8 * MIB, 3)
child = os.fork()
if child == 0:
    assert holds(block, 8 * MIB, 3)
    dealloc(block)
    own = filled(8 * MIB, 9)  # the address is free in the child alone
    assert own == block and used() == 16 * MIB
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert used() == 8 * MIB and holds(block, 8 * MIB, 3)
dealloc(block)
assert used() == 0, used()
"""
    )


def test_fork_child_keeps_memory_in_use_until_it_ends_and_is_named(run: Run) -> None:
    run(
        C10
        + """
block = filled(8 * MIB, 3)
gate, opened = os.pipe()
child = os.fork()
if child == 0:
    os.close(opened)
    os.read(gate, 1)
    os._exit(0)
assert holders() == {os.getpid(): 8 * MIB, child: 8 * MIB}
assert DEVICE.holders()[os.getpid()] == DEVICE.holders()[child]  # the same blocks
dealloc(block)
assert used() == 8 * MIB and holders() == {child: 8 * MIB}
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert used() == 0, used()
"""
    )


def test_fork_child_cannot_change_its_parents_block(run: Run) -> None:
    run(
        C10
        + """
block = filled(MIB, 3)
child = os.fork()
if child == 0:
    ctypes.memset(block, 4, 1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
assert holds(block, MIB, 3)
"""
    )


def test_fork_while_other_threads_allocate(run: Run) -> None:
    run(
        C10
        + """
stop = threading.Event()

def churn():
    while not stop.is_set():
        dealloc(alloc(100_000))

threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that waits for a lock for ever
        dealloc(filled(100_000, 1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
assert used() == 0, used()
"""
    )


# ---- measuring ----


def test_a_file_mapped_twice_counts_once(run: Run) -> None:
    run(
        """
fd = os.open(os.environ["SIMDEVICE_DIR"], os.O_TMPFILE | os.O_RDWR)
os.posix_fallocate(fd, 0, 4 * MIB)
whole = mmap.mmap(fd, 4 * MIB)
second_half = mmap.mmap(fd, 2 * MIB, offset=2 * MIB)
os.close(fd)
assert holders() == {os.getpid(): 4 * MIB}
whole.close()
assert holders() == {os.getpid(): 2 * MIB}
assert used() == 4 * MIB
""",
        preload=False,
    )


def test_a_device_that_went_away_is_an_error(run: Run) -> None:
    run(
        """
from dra_driver.devices import DeviceError
subprocess.run(["umount", os.environ["SIMDEVICE_DIR"]], check=True)
for broken in (used, SimulatedDevice("gpu0", Path(os.environ["SIMDEVICE_DIR"])).read):
    try:
        broken()
    except DeviceError as exc:
        assert "device gpu0: " in str(exc), exc
    else:
        raise SystemExit("measured a device that is not there")
""",
        preload=False,
    )


# ---- never host memory in its place ----

REFUSED = """
import torch
torch.empty(16000, dtype=torch.uint8)
for _ in range(2):
    try:
        torch.empty(1 << 20, dtype=torch.uint8)
    except RuntimeError as exc:
        assert "can't allocate memory" in str(exc), exc
    else:
        raise SystemExit("took host memory")
"""


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        (None, "SIMDEVICE_DIR is not set"),
        ("gpu0", "SIMDEVICE_DIR=gpu0 is not an absolute path"),
        ("{tmp}/missing", "No such file or directory"),
        ("{tmp}", "no tmpfs is mounted there"),
    ],
)
def test_misconfigured_directory(
    library: Path, tmp_path: Path, directory: str | None, why: str
) -> None:
    named = (directory or "").format(tmp=tmp_path)
    env = simdevice_env.environment(named, library)
    if directory is None:
        del env["SIMDEVICE_DIR"]
    done = subprocess.run(
        simdevice_env.python(REFUSED),
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "simdevice" in line.lower()]
    assert len(lines) == 1
    assert why in lines[0]


def test_device_unmounted_under_a_running_process(run: Run) -> None:
    done = run(
        """
subprocess.run(["umount", os.environ["SIMDEVICE_DIR"]], check=True,
    env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
"""
        + REFUSED
    )
    assert "No such device" in done.stderr


def test_the_directory_survives_an_overwritten_environment(run: Run) -> None:
    # setproctitle writes over the block that getenv points into
    run(
        C10
        + """
libc.getenv.restype = ctypes.c_void_p
at = libc.getenv(b"SIMDEVICE_DIR")
ctypes.memset(at, 0, len(ctypes.string_at(at)))
assert libc.getenv(b"SIMDEVICE_DIR") == at and ctypes.string_at(at) == b""
block = alloc(MIB)
assert used() == MIB, used()
"""
    )


# ---- vLLM's sleep and wake_up on the device ----

ENGINE = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

def main():
    from vllm import LLM, SamplingParams

    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(64)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1").save_pretrained("model")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=1024, head_dim=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, bos_token_id=0,
        eos_token_id=1, max_position_embeddings=128)
    LlamaForCausalLM(config).save_pretrained("model")
    assert used() < 4 * MIB, used()

    llm = LLM("model", dtype="float32", enforce_eager=True, enable_prefix_caching=False, seed=0,
        max_model_len=128, kv_cache_memory_bytes=32 * MIB, disable_log_stats=True,
        worker_cls="simdevice_worker.SimulatedDeviceWorker")

    def answer():
        sampling = SamplingParams(temperature=1, seed=7, max_tokens=16, logprobs=2, ignore_eos=True)
        outputs = llm.generate(["3 4 5", "6 7"], sampling, use_tqdm=False)
        return [[(t, p.logprob) for step in o.outputs[0].logprobs for t, p in sorted(step.items())]
            for o in outputs]

    expected, awake = answer(), used()
    figures = {"awake": awake}
    assert awake > 40 * MIB, awake

    llm.sleep(level=1)
    figures["asleep_1"] = used()
    llm.wake_up(tags=["weights"])
    assert figures["asleep_1"] < used() < awake - 30 * MIB, used()
    llm.wake_up(tags=["kv_cache"])
    assert used() == awake, used()
    assert answer() == expected

    llm.sleep(level=1)
    another = os.open(os.environ["SIMDEVICE_DIR"], os.O_TMPFILE | os.O_RDWR)
    os.posix_fallocate(another, 0, DEVICE.read().total - used() - 16 * MIB)
    before = used()
    try:
        llm.wake_up()
    except Exception as exc:
        assert "can't allocate memory" in repr(exc) or "allocate memory" in str(exc), exc
    else:
        raise SystemExit("woke up without room")
    assert used() == before, (used(), before)
    os.close(another)
    llm.wake_up()
    assert used() == awake, used()
    assert answer() == expected

    llm.sleep(level=2)
    figures["asleep_2"] = used()
    llm.wake_up()
    assert used() == awake, used()
    assert answer() != expected  # the weights were dropped
    llm.collective_rpc("reload_weights", kwargs={"weights_path": "model"})
    assert answer() == expected
    assert used() == awake, used()
    print(json.dumps(figures))

if __name__ == "__main__":
    main()
"""


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_vllm_sleeps_and_wakes_with_the_same_answers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(
        ENGINE,
        size=128 * MIB,
        timeout_s=560,
        env={
            "PYTHONPATH": f"{simdevice_env.ROOT}:{simdevice_env.ROOT / 'hack/simdevice'}",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["asleep_1"] < MIB
    assert figures["asleep_2"] < MIB
