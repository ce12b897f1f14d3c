"""What `hack/demo --compare` says, and how it ends, when its ways do not learn the same."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hack import demo
from hack.demo_outcome import Done
from tandem.run_files import Progress, Run

LEARNED = tuple(
    Progress(t=100.0 + i, iteration=i, reward=0.1 * i, loss=0.3 / i, weights_check=0.0)
    for i in (1, 2, 3)
)
LAST_DIGIT = replace(LEARNED[1], loss=math.nextafter(0.15, 1.0))


def done(name: str, progress: Sequence[Progress] = LEARNED) -> Done:
    run = Run((), (), (), (), (), tuple(progress), ())
    return Done(name, {"gpu0": 1 << 20}, Path("a-folder"), run, None, (), None)


def told(*others: Done) -> list[str]:
    return list(demo.different([done("turns"), *others]))


def test_equal_rewards_and_losses_are_no_difference() -> None:
    assert told(done("resident"), done("disaggregated")) == []


@pytest.mark.parametrize(
    "one",
    [LAST_DIGIT, replace(LEARNED[1], reward=math.nextafter(0.2, 1.0))],
    ids=["loss", "reward"],
)
def test_the_first_iteration_that_differs_in_its_last_digit_is_named(one: Progress) -> None:
    later = replace(LEARNED[2], loss=1.0)
    (sentence,) = told(done("resident"), done("disaggregated", (LEARNED[0], one, later)))
    assert sentence == (
        f"disaggregated: iteration 2 has reward and loss {(one.reward, one.loss)},"
        f" turns has {(LEARNED[1].reward, LEARNED[1].loss)}: they must be equal"
    )


def test_fewer_iterations_cannot_be_compared() -> None:
    (sentence,) = told(done("resident", LEARNED[:2]))
    assert sentence == "resident: 2 iterations, turns: 3: they cannot be compared"


def test_a_way_without_a_run_cannot_be_compared() -> None:
    (sentence,) = told(replace(done("resident"), run=None))
    assert "0 iterations" in sentence


class TestTheCommand:
    """All of it but the runs themselves, which are those given."""

    def run(
        self, ends: Mapping[str, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Result:
        monkeypatch.setattr(demo, "tiny_model", lambda _: tmp_path)
        monkeypatch.setattr(demo, "run", lambda way, *_: ends[way.name])
        arguments = ["--compare", "-o", "json", "--out", str(tmp_path)]
        return CliRunner().invoke(demo.main, arguments)

    def test_it_ends_with_the_first_way_that_differs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = done("resident", (LEARNED[0], LAST_DIGIT, LEARNED[2]))
        ended = self.run({"turns": done("turns"), "resident": other}, tmp_path, monkeypatch)
        assert ended.exit_code == 1
        said = json.loads(ended.stdout.splitlines()[-1])
        assert list(said["ways"]) == ["turns", "resident"]
        (failure,) = said["failures"]
        assert failure.startswith("resident: iteration 2 has reward and loss ")
        assert "failed: resident: iteration 2" in ended.stderr

    def test_it_is_green_when_all_learn_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends = {name: done(name) for name in ("turns", "resident", "disaggregated")}
        ended = self.run(ends, tmp_path, monkeypatch)
        assert (ended.exit_code, json.loads(ended.stdout.splitlines()[-1])["failures"]) == (0, [])
