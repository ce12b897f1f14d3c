"""A run's files, parsed strictly, and the figures that are computed from them."""

import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from claim_phases.phases import Phase
from tandem import figures, run_files
from tandem.handovers import SPLIT, turns
from tandem.report import Percentiles, Report, summarise
from tandem.run_files import (
    DeviceUse,
    Measured,
    PhaseChange,
    Progress,
    Room,
    Run,
    RunFileError,
    Sample,
    read_run,
)
from tests.unit import synthetic_run
from tests.unit.synthetic_run import MIB, SyntheticRun

PHASE: dict[str, Any] = {
    "t": 1.0,
    "kind": "phase",
    "tenant": "rollout",
    "from": "Parked",
    "to": "Waiting",
    "epoch": 1,
    "devices": ["gpu0"],
    "weights": None,
}


@pytest.fixture(name="synthetic", scope="module")
def _synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[SyntheticRun, Run]:
    run = SyntheticRun(seed=7)
    run.iterate(12)
    return run, read_run(run.write(tmp_path_factory.mktemp("run"), sample_every_s=0.02))


def report_of(run: Run) -> Report:
    return summarise(run, residual_budget=synthetic_run.BUDGET, violations=[])


class TestFiles:
    def test_what_was_written_is_what_is_read(self, synthetic: tuple[SyntheticRun, Run]) -> None:
        written, run = synthetic
        lines = written.lines["events.jsonl"]
        assert len(run.changes) == sum(line["kind"] == "phase" for line in lines)
        assert len(run.measured) == sum(line["kind"] == "measured" for line in lines)
        assert len(run.progress) == 12
        assert run.changes[0].before is None
        assert run.changes[-1].after == "Gone"
        assert run.samples[-1].devices["gpu0"].total == 256 * MIB
        assert run.notes == ()

    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ('{"t": 1', "Invalid JSON"),
            (json.dumps(PHASE | {"to": "Sleeping"}), "to"),
            (json.dumps(PHASE | {"epoch": "3"}), "phase.epoch: Input should be a valid integer"),
            (json.dumps({k: v for k, v in PHASE.items() if k != "weights"}), "weights: Field req"),
            (json.dumps(PHASE | {"kind": "fase"}), "'fase'"),
            (json.dumps({"t": 1.0}), "kind"),
            ("", "Invalid JSON"),
            ("[]", "should be an object"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path: Path, line: str, fault: str) -> None:
        (tmp_path / "events.jsonl").write_text(json.dumps(PHASE) + "\n" + line + "\n")
        with pytest.raises(RunFileError) as raised:
            read_run(tmp_path)
        told = str(raised.value)
        assert told.startswith(f"{tmp_path}/events.jsonl:2: ")
        assert fault in told
        assert "\n" not in told

    def test_a_torn_last_line_is_left_out_and_told(self, tmp_path: Path) -> None:
        (tmp_path / "events.jsonl").write_text(json.dumps(PHASE) + '\n{"t": 2.0, "ki')
        run = read_run(tmp_path)
        assert len(run.changes) == 1
        assert run.notes[0].startswith("events.jsonl:2: the last line is torn (14 bytes")

    def test_missing_files_are_told_and_a_folder_without_events_is_no_run(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(RunFileError, match=r"no events\.jsonl"):
            read_run(tmp_path)
        (tmp_path / "events.jsonl").write_text(json.dumps(PHASE) + "\n")
        notes = read_run(tmp_path).notes
        assert [note.split()[0] for note in notes] == ["samples.jsonl", "progress.jsonl"]

    def test_a_growing_file_is_read_on_from_where_the_last_read_ended(self, tmp_path: Path) -> None:
        tail = run_files.progress(tmp_path)
        assert tail.read() == []
        with (tmp_path / "progress.jsonl").open("a") as file:
            file.write('{"t": 1.0, "iteration": 1}\n{"t": 2.0, "iter')
            file.flush()
            assert tail.read() == [Progress(t=1.0, iteration=1)]
            assert tail.torn == b'{"t": 2.0, "iter'
            file.write('ation": 2, "reward": 0.5, "step_time": 3}\n')
            file.flush()
            assert tail.read() == [Progress(t=2.0, iteration=2, reward=0.5)]
            assert tail.torn == b""

    def test_the_line_is_counted_over_several_reads(self, tmp_path: Path) -> None:
        tail = run_files.progress(tmp_path)
        path = tmp_path / "progress.jsonl"
        path.write_text('{"t": 1.0, "iteration": 1}\n')
        tail.read()
        path.write_text(path.read_text() + '{"t": 2.0, "iteration": "two"}\n')
        with pytest.raises(RunFileError, match=r"progress\.jsonl:2: iteration: .* got 'two'"):
            tail.read()


class TestHandovers:
    def test_each_lasts_as_long_as_the_run_made_it(
        self, synthetic: tuple[SyntheticRun, Run]
    ) -> None:
        written, run = synthetic
        report = report_of(run)
        assert [one.duration_s for one in report.handovers] == pytest.approx(written.handovers_s)
        assert [(one.giver, one.taker) for one in report.handovers[:2]] == [
            ("trainer", "rollout"),
            ("rollout", "trainer"),
        ]

    def test_the_split_and_the_rest_are_the_whole(
        self, synthetic: tuple[SyntheticRun, Run]
    ) -> None:
        _, run = synthetic
        for one in report_of(run).handovers:
            parts = sum(one.time_in(phase) for phase in SPLIT)
            assert parts + one.other_s == pytest.approx(one.duration_s)
            assert 0 < one.other_s < 0.002
            assert one.reads >= 1

    def test_first_grants_are_starts(self, synthetic: tuple[SyntheticRun, Run]) -> None:
        _, run = synthetic
        report = report_of(run)
        assert [start.tenant for start in report.starts] == ["rollout", "trainer"]
        assert report.starts[0].duration_s == pytest.approx(20.0)
        assert report.turns == 2 + len(report.handovers) == 26

    def test_a_waiter_starts_the_clock_when_it_finds_the_holder_yielded(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "a", "Yielded", 3),
            _change(7.0, "b", "Waiting", 3),
            *_pass_on("a", "b", 7.1, 4),
        )
        (passed,) = turns(changes, [], 20.0).handovers
        assert (passed.giver, passed.taker, passed.epoch) == ("a", "b", 4)
        assert (passed.start, passed.end) == pytest.approx((7.0, 7.5))

    def test_a_yield_starts_the_clock_of_a_waiter(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "b", "Waiting", 3),
            _change(7.0, "a", "Yielded", 3),
            *_pass_on("a", "b", 7.1, 4),
        )
        (passed,) = turns(changes, [], 20.0).handovers
        assert passed.start == 7.0

    def test_a_holder_that_yields_twice_lets_go_the_last_time(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "a", "Yielded", 3),
            _change(5.5, "a", "Running", 3),
            _change(5.6, "b", "Waiting", 3),
            _change(8.0, "a", "Yielded", 3),
            *_pass_on("a", "b", 8.1, 4),
        )
        found = turns(changes, [], 20.0)
        assert [one.start for one in found.handovers] == [8.0]
        assert found.grants == 3, "resumed in the same epoch is no new grant"

    def test_a_dead_holder_lets_go_when_it_dies(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "b", "Waiting", 3),
            _change(6.0, "a", "Verifying", 3),
            _change(6.2, "a", "Gone", 3),
            _change(6.3, "b", "Restoring", 4),
            _change(6.4, "b", "Running", 4),
        )
        (passed,) = turns(changes, [], 20.0).handovers
        assert (passed.giver, passed.start) == ("a", 6.0)
        assert passed.time_in(Phase.VERIFYING) == pytest.approx(0.2)

    def test_a_fault_counts_as_holding(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "a", "Yielded", 3),
            _change(5.1, "b", "Waiting", 3),
            _change(5.2, "a", "Quiescing", 3),
            _change(5.3, "a", "Faulted", 3),
            _change(9.0, "a", "Verifying", 3),
            _change(9.1, "a", "Parked", 3),
            _change(9.2, "b", "Restoring", 4),
            _change(9.3, "b", "Running", 4),
        )
        (passed,) = turns(changes, [], 20.0).handovers
        assert passed.start == 9.0

    def test_a_restarted_tenant_starts_again(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "b", "Gone", 3),
            _change(6.0, "b", "Parked", 3),
            _change(6.1, "b", "Waiting", 3),
            _change(6.2, "a", "Yielded", 3),
            *_pass_on("a", "b", 6.3, 4),
        )
        found = turns(changes, [], 20.0)
        assert found.handovers == ()
        assert [start.tenant for start in found.starts] == ["b", "a", "b"]

    def test_tenants_on_other_devices_are_no_givers(self) -> None:
        changes = _after_two_ran(
            _change(5.0, "c", "Waiting", 3, ("gpu1",)),
            _change(5.1, "c", "Restoring", 4, ("gpu1",)),
            _change(5.2, "c", "Running", 4, ("gpu1",)),
            _change(5.3, "c", "Parked", 4, ("gpu1",)),
            _change(5.4, "c", "Waiting", 4, ("gpu1",)),
            _change(5.5, "c", "Restoring", 5, ("gpu1",)),
            _change(5.6, "c", "Running", 5, ("gpu1",)),
        )
        assert turns(changes, [], 20.0).handovers == ()

    def test_of_several_givers_the_last_counts_and_parts_may_overlap(self) -> None:
        wide = ("gpu0", "gpu1")
        changes = [
            _change(0.0, "w", "Restoring", 1, wide),
            _change(0.1, "w", "Running", 1, wide),
            _change(0.2, "w", "Parked", 1, wide),
            _change(0.3, "a", "Restoring", 2),
            _change(0.3, "b", "Restoring", 3, ("gpu1",)),
            _change(1.0, "a", "Running", 2),
            _change(1.0, "b", "Running", 3, ("gpu1",)),
            _change(2.0, "w", "Waiting", 3, wide),
            _change(3.0, "a", "Yielded", 3),
            _change(3.1, "a", "Releasing", 3),
            _change(4.0, "b", "Yielded", 3, ("gpu1",)),
            _change(4.1, "b", "Releasing", 3, ("gpu1",)),
            _change(4.2, "a", "Parked", 3),
            _change(4.3, "b", "Verifying", 3, ("gpu1",)),
            _change(4.35, "w", "Restoring", 4, wide),
            _change(4.4, "b", "Parked", 3, ("gpu1",)),
            _change(4.5, "w", "Running", 4, wide),
        ]
        reads = [Measured(t, "gpu0", 0, 9, True, "b") for t in (3.9, 4.31, 4.32)]
        (passed,) = turns(changes, reads, 5.0).handovers
        assert (passed.giver, passed.start, passed.reads) == ("b", 4.0, 2)
        assert passed.time_in(Phase.RELEASING) == pytest.approx(0.3), "a's and b's, joined"
        assert passed.other_s == pytest.approx(0.0)

    def test_an_open_stay_is_cut_at_the_end(self) -> None:
        stays = turns([_change(1.0, "a", "Waiting", 1)], [], 4.0).stays
        assert [(stay.start, stay.end, stay.open) for stay in stays] == [(1.0, 4.0, True)]


class TestReport:
    def test_the_figures_of_the_synthetic_run(self, synthetic: tuple[SyntheticRun, Run]) -> None:
        _, run = synthetic
        told = report_of(run).to_json()
        rewards = [one.reward or 0.0 for one in run.progress]
        assert told["iterations"] == 12
        assert told["reward_first"] == pytest.approx(math.fsum(rewards[:5]) / 5)
        assert told["reward_last"] == pytest.approx(math.fsum(rewards[-5:]) / 5)
        assert told["device"] == {
            "capacity": 256 * MIB,
            "peak": (205 + 11) * MIB,
            "residual": {"rollout": 11 * MIB, "trainer": 3 * MIB},
            "simulated": True,
        }
        assert told["devices"] == {"gpu0": told["device"]}
        assert told["weights_version"] == 12
        assert told["weights_check_max"] == max(one.weights_check or 0.0 for one in run.progress)
        assert told["sampling_ms"] == {"p50": 20.0, "p99": 20.0, "n": len(run.samples) - 1}
        assert told["violations"] == []

    def test_time_by_phase_adds_up_to_the_wall_time(
        self, synthetic: tuple[SyntheticRun, Run]
    ) -> None:
        _, run = synthetic
        report = report_of(run)
        for spent in report.phases_s.values():
            assert sum(spent.values()) == pytest.approx(report.wall_s, abs=1e-3)
        running = sum(spent[Phase.RUNNING] for spent in report.phases_s.values())
        assert report.busy_share == pytest.approx(running / report.wall_s)
        assert report.wait_s["rollout"] == report.phases_s["rollout"][Phase.WAITING]

    def test_disjoint_devices_are_busy_each_for_itself(self) -> None:
        both = ("gpu0", "gpu1")
        changes = (
            _change(0.0, "a", "Running", 1),
            _change(4.0, "a", "Parked", 1),
            _change(2.0, "b", "Running", 2, ("gpu1",)),
            _change(6.0, "b", "Parked", 2, ("gpu1",)),
            _change(6.0, "w", "Running", 3, both),
            _change(10.0, "w", "Parked", 3, both),
        )
        report = report_of(Run((), changes, (), (), (), (), ()))
        assert report.busy_share == pytest.approx((4 + 4 + 4 + 4) / 20)

    def test_the_residual_is_the_most_of_samples_wholly_aside(self) -> None:
        changes = (
            _change(0.0, "a", "Parked", 0),
            _change(2.0, "a", "Waiting", 0),
            _change(4.0, "a", "Restoring", 1),
            _change(5.0, "a", "Running", 1),
        )
        samples = (
            _sample(0.5, 0.6, 5),
            _sample(1.9, 2.1, 7),  # over the border of Parked and Waiting: aside all the time
            _sample(3.9, 4.1, 90),  # reaches into Restoring
            _sample(5.5, 5.6, 100),
        )
        report = report_of(Run((), changes, (), (), samples, (), ()))
        assert report.device.residual == {"a": 7}
        assert report.device.peak == 100

    def test_what_was_kept_from_a_turn_is_no_residual(self) -> None:
        changes = (_change(0.0, "a", "Parked", 1), _change(2.0, "a", "Waiting", 1))
        samples = (_sample(0.5, 0.6, 57), _sample(2.5, 2.6, 58), _sample(4.0, 4.1, 90))
        rooms = tuple(Room(t, "a", 1, 50, ("gpu0",)) for t in (0.0, 2.0))
        run = Run((), (*changes, _change(3.0, "a", "Running", 2)), (), (), samples, (), ())
        assert report_of(replace(run, rooms=rooms)).device.residual == {"a": 8}

    def test_what_is_restored_ahead_of_the_turn_is_no_residual(self) -> None:
        changes = (_change(0.0, "a", "Parked", 0), _change(2.0, "a", "Waiting", 0))
        samples = (_sample(2.5, 2.6, 7), _sample(3.0, 3.1, 50), _sample(4.0, 4.1, 90))
        rooms = (Room(3.05, "a", 1, 90, ("gpu0",)),)
        run = Run((), (*changes, _change(5.0, "a", "Running", 2)), (), (), samples, (), ())
        assert report_of(replace(run, rooms=rooms)).device.residual == {"a": 7}

    def test_several_devices_are_one_sample_by_sample(self) -> None:
        changes = (_change(0.0, "a", "Parked", 0, ("gpu0", "gpu1")),)
        samples = tuple(
            Sample(
                t,
                t,
                {"gpu0": DeviceUse(one, 10), "gpu1": DeviceUse(two, 20)},
                {"a": {"gpu0": one, "gpu1": two}},
                (),
            )
            for t, one, two in ((1.0, 6, 1), (2.0, 2, 8))
        )
        report = report_of(Run((), changes, (), (), samples, (), ()))
        assert (report.device.capacity, report.device.peak) == (30, 10)
        assert report.device.residual == {"a": 10}
        assert (report.devices["gpu0"].peak, report.devices["gpu1"].peak) == (6, 8)

    def test_an_iteration_told_again_after_a_restart_counts_once(self) -> None:
        progress = tuple(Progress(t, i, r) for t, i, r in ((1, 1, 0.1), (2, 2, 0.2), (3, 2, 0.6)))
        report = report_of(Run((), (), (), (), (), progress, ()))
        assert report.iterations == 2
        assert report.reward_last == pytest.approx(0.35)

    def test_a_check_that_is_not_a_number_is_not_lost(self) -> None:
        progress = (Progress(1.0, 1, weights_check=math.nan), Progress(2.0, 2, weights_check=1e-6))
        report = report_of(Run((), (), (), (), (), progress, ()))
        assert report.weights_check_max is not None
        assert math.isnan(report.weights_check_max)
        assert report.to_json()["weights_check_max"] is None

    def test_what_is_unknown_is_null(self) -> None:
        told = report_of(Run((), (), (), (), (), (), ())).to_json()
        assert told["reward_first"] is told["device"]["capacity"] is told["weights_version"] is None
        assert told["handover_ms"] == {"p50": None, "p99": None, "n": 0}
        json.dumps(told, allow_nan=False)

    def test_it_prints_the_figures_the_curve_and_that_the_device_is_simulated(
        self, synthetic: tuple[SyntheticRun, Run]
    ) -> None:
        _, run = synthetic
        told = io.StringIO()
        report = summarise(
            run, residual_budget=synthetic_run.BUDGET, violations=["rollout held [b]9 MiB[/b]"]
        )
        report.render(Console(file=told, width=100))
        text = told.getvalue()
        assert "256.0 MiB, peak 216.0 MiB (simulated)" in text
        assert "Reward by iteration, 1 to 12" in text
        assert "violation: rollout held [b]9 MiB[/b]" in text
        assert any("⠀" <= letter <= "⣿" for letter in text)


def test_percentiles_by_nearest_rank_are_measured_values() -> None:
    """Against the definition: the smallest value that at least p percent do not exceed."""
    draw = random.Random(5)
    for n in (1, 2, 3, 99, 100, 101, 250):
        values = [draw.random() for _ in range(n)]
        found = Percentiles.of(values)
        for part, value in ((0.5, found.p50), (0.99, found.p99)):
            assert value == min(
                one for one in values if sum(other <= one for other in values) >= part * n
            )
        assert found.max == max(values)
    assert Percentiles.of([]) == Percentiles(None, None, None, 0)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.0 MiB"), (3, "3 B"), (2048, "2.0 KiB"), (MIB, "1.0 MiB"), (215 * MIB, "215.0 MiB")],
)
def test_bytes_as_text(amount: int, text: str) -> None:
    assert figures.mib(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (4e-6, "4 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (86.2, "1 min 26 s")],
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_a_curve_has_its_ends_in_the_corners() -> None:
    lines = figures.curve([0.0, 1.0, 2.0, 3.0], width=4, height=2)
    assert [len(line) for line in lines] == [4, 4]
    assert ord(lines[-1][0]) & 0x40, "the lowest value is the lowest dot on the left"
    assert ord(lines[0][-1]) & 0x08, "the highest value is the highest dot on the right"
    assert figures.curve([], 4, 2) == []
    assert figures.curve([math.nan], 4, 2) == []
    assert figures.curve([0.5], 4, 1) != []


def test_a_sparkline_shows_the_last_values() -> None:
    assert figures.sparkline([9.0, 0.0, 1.0], 2) == "▁█"
    assert figures.sparkline([], 5) == ""


def _change(
    t: float, tenant: str, to: str, epoch: int, devices: tuple[str, ...] = ("gpu0",)
) -> PhaseChange:
    after: Phase | run_files.Gone = "Gone" if to == "Gone" else Phase(to)
    return PhaseChange(t, tenant, None, after, epoch, devices, None)


def _after_two_ran(*changes: PhaseChange) -> list[PhaseChange]:
    """`b` and then `a` had their first turns, and `a` is Running; then what is given."""
    return [
        _change(0.0, "b", "Waiting", 0),
        _change(0.1, "b", "Restoring", 1),
        _change(0.2, "b", "Running", 1),
        _change(1.0, "a", "Waiting", 1),
        _change(1.1, "b", "Yielded", 1),
        *_pass_on("b", "a", 1.2, 3),
        *changes,
    ]


def _pass_on(giver: str, taker: str, t: float, epoch: int) -> list[PhaseChange]:
    return [
        _change(t, giver, "Quiescing", epoch - 1),
        _change(t + 0.1, giver, "Releasing", epoch - 1),
        _change(t + 0.2, giver, "Parked", epoch - 1),
        _change(t + 0.3, taker, "Restoring", epoch),
        _change(t + 0.4, taker, "Running", epoch),
    ]


def _sample(t0: float, t1: float, amount: int) -> Sample:
    return Sample(t0, t1, {"gpu0": DeviceUse(amount, 128)}, {"a": {"gpu0": amount}}, ())
