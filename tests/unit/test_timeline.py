"""The page of a run and its trace: complete, self-contained, and safe with any names."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from claim_phases.phases import Phase
from tandem import perfetto, timeline
from tandem.handovers import SPLIT
from tandem.report import Report, summarise
from tandem.run_files import DeviceUse, PhaseChange, Run, Sample, Stranger, read_run
from tests.unit import synthetic_run
from tests.unit.synthetic_run import MIB, SyntheticRun

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    synthetic = SyntheticRun(seed=11)
    synthetic.iterate(8)
    synthetic.condition("Intruder", "trainer uses gpu0", tenant="trainer", device="gpu0", bytes=MIB)
    synthetic.condition("ForeignMemory", "process 7 holds 1.0 MiB of gpu0", device="gpu0")
    return read_run(synthetic.write(tmp_path_factory.mktemp("run"), sample_every_s=0.02))


@pytest.fixture(name="report", scope="module")
def _report(run: Run) -> Report:
    return summarise(run, residual_budget=synthetic_run.BUDGET, violations=[])


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, text, and the data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: dict[str, Any] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag == "script" and attributes.get("id") == "data" and data.strip():
            self.data = json.loads(data)
        self.text.append(data)

    def rows(self) -> list[int]:
        return [
            int(attributes["data-handover"] or -1)
            for tag, attributes in self.elements
            if tag == "tr" and "data-handover" in attributes
        ]


def test_the_page_needs_nothing_else(run: Run, report: Report) -> None:
    html = timeline.page("grpo", run, report)
    assert not re.search(r"(?:https?:)?//[a-z]", html), "no address of any kind"
    page = Page(html)
    for tag, attributes in page.elements:
        assert not {"src", "href", "srcset"} & attributes.keys(), (tag, attributes)
    assert not re.search(r"@import|url\(", html)
    policy = [a["content"] for tag, a in page.elements if "http-equiv" in a]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none';"), "and a browser is told to enforce it"


def test_the_page_shows_every_stay_handover_version_and_condition(run: Run, report: Report) -> None:
    page = Page(timeline.page("grpo", run, report))
    data = page.data
    assert [tenant["name"] for tenant in data["tenants"]] == ["rollout", "trainer"]
    assert sum(len(tenant["stays"]) for tenant in data["tenants"]) == len(report.stays)
    assert len(data["handovers"]) == len(report.handovers) == 16
    assert page.rows() == list(range(16))
    assert [version for _, _, version in data["weights"]] == list(range(1, 9))
    assert [one[1] for one in data["progress"]] == list(range(1, 9))
    assert data["devices"][0]["budget"] == 24 * MIB
    text = " ".join(page.text)
    for shown in ("simulated device", "trainer uses gpu0", "process 7 holds 1.0 MiB of gpu0"):
        assert shown in text


def test_a_handover_on_the_page_adds_up(run: Run, report: Report) -> None:
    for one in Page(timeline.page("grpo", run, report)).data["handovers"]:
        whole_ms = (one["end"] - one["start"]) * 1e3
        assert sum(ms for _, ms in one["split"]) + one["other"] == pytest.approx(whole_ms, abs=0.02)
        assert all(one["start"] <= part[2] <= part[3] <= one["end"] for part in one["parts"])


def test_violations_are_on_the_page(run: Run) -> None:
    report = summarise(run, residual_budget={}, violations=["rollout held 9 MiB without a turn"])
    text = " ".join(Page(timeline.page("grpo", run, report)).text)
    assert "rollout held 9 MiB without a turn" in text
    assert "1 violation" in text
    assert "no rule was broken" not in text


def test_names_are_never_markup() -> None:
    changes = tuple(
        PhaseChange(t, HOSTILE, None, Phase(to), 1, (HOSTILE,), 1)
        for t, to in ((0.0, "Parked"), (1.0, "Waiting"), (1.5, "Restoring"), (2.0, "Running"))
    )
    samples = (
        Sample(
            1.0,
            1.1,
            {HOSTILE: DeviceUse(9, 10)},
            {HOSTILE: {HOSTILE: 4}},
            (Stranger(7, HOSTILE, HOSTILE, 5),),
        ),
    )
    run = Run((), changes, (), (), samples, (), (HOSTILE,))
    report = summarise(run, residual_budget={HOSTILE: 1}, violations=[HOSTILE])
    page = Page(timeline.page(HOSTILE, run, report))
    assert [tag for tag, _ in page.elements].count("script") == 2, "the data and the page's own"
    assert "img" not in [tag for tag, _ in page.elements]
    assert not any(name.startswith("on") for _, a in page.elements for name in a)
    assert page.data["tenants"][0]["name"] == HOSTILE
    assert HOSTILE in "".join(page.text)


def test_an_empty_run_has_a_page() -> None:
    run = Run((), (), (), (), (), (), ("samples.jsonl is missing",))
    page = Page(timeline.page("grpo", run, summarise(run, residual_budget={}, violations=[])))
    assert page.data["tenants"] == page.data["handovers"] == []
    assert "samples.jsonl is missing" in page.text


def test_equal_samples_are_left_out_and_every_change_is_kept() -> None:
    amounts = [5, 5, 5, 5, 9, 5, 5, 5]
    samples = tuple(
        Sample(float(t), float(t), {"gpu0": DeviceUse(amount, 10)}, {}, ())
        for t, amount in enumerate(amounts)
    )
    run = Run((), (), (), (), samples, (), ())
    page = Page(timeline.page("grpo", run, summarise(run, residual_budget={}, violations=[])))
    rows = page.data["devices"][0]["samples"]
    assert [row[:2] for row in rows] == [[0, 5], [3, 5], [4, 9], [5, 5], [7, 5]]


def test_weights_are_marked_when_first_served() -> None:
    served = [None, 1, 1, 2, 2]
    changes = [
        PhaseChange(float(t), "rollout", None, Phase.RUNNING, t, ("gpu0",), version)
        for t, version in enumerate(served)
    ]
    assert timeline.weights_marks(changes) == [(1.0, "rollout", 1), (3.0, "rollout", 2)]


class TestTrace:
    @pytest.fixture(name="events")
    def _events(self, run: Run, report: Report, tmp_path: Path) -> list[dict[str, Any]]:
        path = perfetto.save(tmp_path, "grpo", run, report)
        told = json.loads(path.read_text(), parse_constant=pytest.fail)
        assert told["displayTimeUnit"] == "ms"
        assert told["otherData"] == {"job": "grpo", "device": "simulated"}
        events: list[dict[str, Any]] = told["traceEvents"]
        return events

    def test_every_event_has_what_its_kind_needs(self, events: list[dict[str, Any]]) -> None:
        needs = {
            "M": {"name", "pid", "args"},
            "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
            "C": {"name", "pid", "ts", "args"},
            "i": {"name", "cat", "pid", "ts", "s"},
            "b": {"name", "cat", "pid", "ts", "id"},
            "e": {"name", "cat", "pid", "ts", "id"},
        }
        for event in events:
            assert needs[event["ph"]] <= event.keys()
            assert event.get("ts", 0) >= 0
            assert event.get("dur", 0) >= 0
        assert {event["ph"] for event in events} == needs.keys()

    def test_every_track_is_named(self, events: list[dict[str, Any]]) -> None:
        named = {event["pid"] for event in events if event["name"] == "process_name"}
        assert {event["pid"] for event in events} == named
        threads = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        assert list(threads.values()) == ["rollout", "trainer"]
        assert {event["tid"] for event in events if event["ph"] == "X"} == threads.keys()

    def test_slices_of_a_track_do_not_overlap(
        self, events: list[dict[str, Any]], report: Report
    ) -> None:
        slices = [event for event in events if event["ph"] == "X"]
        assert len(slices) == len(report.stays)
        for tid in (1, 2):
            track = sorted((e["ts"], e["dur"]) for e in slices if e["tid"] == tid)
            for (start, length), (following, _) in itertools.pairwise(track):
                assert start + length <= following + 0.01

    def test_handovers_open_and_close(self, events: list[dict[str, Any]], report: Report) -> None:
        opened = {event["id"]: event for event in events if event["ph"] == "b"}
        closed = {event["id"]: event for event in events if event["ph"] == "e"}
        assert opened.keys() == closed.keys()
        assert len(opened) == len(report.handovers)
        for number, event in opened.items():
            whole_ms = (closed[number]["ts"] - event["ts"]) / 1e3
            parts = [event["args"][f"{phase.value} ms"] for phase in SPLIT]
            assert sum(parts) + event["args"]["other ms"] == pytest.approx(whole_ms, abs=0.02)

    def test_memory_and_marks(self, events: list[dict[str, Any]]) -> None:
        used = [e["args"]["bytes"] for e in events if e["name"] == "gpu0 used"]
        assert max(used) == (205 + 11) * MIB
        weights = [e["name"] for e in events if e.get("cat") == "weights"]
        assert weights == [f"weights v{version}" for version in range(1, 9)]
        scopes = {e["name"]: e["s"] for e in events if e.get("cat") == "condition"}
        assert scopes == {"Intruder": "t", "ForeignMemory": "g"}
