"""Four ways to cheat: each turns the demo's exit status red, with a sentence that names it."""

from pathlib import Path

import pytest

from tests.demo.running import Demo, cheating, demo

pytestmark = [pytest.mark.demo, pytest.mark.timeout(400)]


GONE = ("trainer", "Gone")


def cheated(folder: Path, *cheats: str) -> Demo:
    job = cheating(folder, *cheats)
    done = demo(folder / "out", "--job", str(job), "--steps", "4", timeout_s=380)
    assert done.status == 1, done.shown
    return done


@pytest.fixture(scope="module")
def two_cheats(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The job goes on after the first, and ends with the second."""
    return cheated(tmp_path_factory.mktemp("two"), "old_weights.py", "stranger.py")


def test_older_weights_behind_the_engines_back(two_cheats: Demo) -> None:
    done = two_cheats
    (told,) = done.failures("did not serve the published weights")
    assert told.startswith("in iteration 3 ")
    assert "(version 3)" in told
    assert done.told["weights_check_max"] > done.told["weights_tolerance"]


def test_a_tenant_that_says_parked_and_keeps_its_memory(tmp_path: Path) -> None:
    done = cheated(tmp_path, "keeps_memory.py")
    (told,) = done.failures("Faulted: ", "trainer", "MiB")
    faulted = next(i for i, one in enumerate(done.events) if one.get("condition") == "Faulted")
    condition = done.events[faulted]
    assert condition["tenant"] == "trainer"
    assert condition["bytes"] > 40 << 20  # the model's parameters alone
    after = done.events[faulted:]
    # Its processes are dead when the run is taken down: only then may another be granted.
    ended = [i for i, one in enumerate(after) if (one.get("tenant"), one.get("to")) == GONE]
    granted = [i for i, one in enumerate(after) if one.get("to") in ("Restoring", "Running")]
    assert all(ended and i > ended[0] for i in granted)
    assert condition["message"] in told


def test_a_strangers_process_on_the_device(two_cheats: Demo) -> None:
    done = two_cheats
    assert done.failures("ForeignMemory: ", "24.0 MiB")
    assert done.failures("which belongs to no tenant, held 24.0 MiB of gpu0: foreign memory")
    blamed = [one for one in done.events if one.get("kind") == "condition" and one["tenant"]]
    assert blamed == []
    assert done.failures("residual budget") == []


def test_a_tenant_that_allocates_without_a_turn(tmp_path: Path) -> None:
    done = cheated(tmp_path, "without_turn.py")
    assert done.failures("Intruder: ", "trainer", "24.")
    assert done.failures("trainer held 24.", "while it was", "(its residual budget is 8.0 MiB)")
