"""tandem top, explain and timeline, of a node's folder and of a run's, as a person calls them."""

import io
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from claim_phases.accounts import OTHERS, Account, Cause, Group, Why
from dra_driver.event_log import before
from tandem import accounts_view, figures
from tandem.books import Books
from tandem.cli import main
from tandem.reasons import reasons, words
from tandem.run_files import read_run
from tests.unit.synthetic_run import SyntheticRun
from tests.unit.test_accounts import S, handover

GRPO, DPO = Group("team-a/grpo", "trainer"), Group("team-b/dpo", "trainer")
TENANTS = {"team-a/trainer-0": GRPO, "team-a/rollout-0": Group(GRPO.job, "rollout")}
TENANTS |= {"team-b/trainer-0": DPO}


def node(folder: Path) -> Path:
    """Two jobs on one device; the boot is another one, so time has stopped."""
    told: list[dict[str, Any]] = [
        {"t": 100.0, "kind": "start", "boot_id": "long ago", "epoch": 0, "tenants": []}
    ]
    for name, group in TENANTS.items():
        who = {"tenant": name, "job": group.job, "role": group.role, "life": name}
        told.append({"t": 100.0, "kind": "tenant", **who, "devices": ["gpu-0"]})
    a, r, b = TENANTS
    story = [
        (100.0, a, "Restoring"),
        (102.0, a, "Running"),
        (106.0, r, "Waiting"),
        (107.0, b, "Waiting"),
        (112.0, a, "Quiescing"),
        (112.0, a, "Releasing"),
        (113.0, a, "Verifying"),
        (113.0, a, "Parked"),
        (113.0, b, "Restoring"),
        (114.0, b, "Running"),
        (119.0, a, "Waiting"),
        (131.0, b, "Verifying"),
        (131.0, b, "Gone"),
        (131.0, a, "Restoring"),
        (132.0, a, "Running"),
        (142.0, a, "Yielded"),
    ]
    about = {"kind": "phase", "from": "Parked", "epoch": 1, "devices": ["gpu-0"], "weights": None}
    told += [{"t": t, "tenant": name, "to": to, **about} for t, name, to in story]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    return folder


def tandem(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def told(*arguments: object) -> Any:
    result = tandem(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_top_shows_who_waits_for_whom(tmp_path: Path) -> None:
    output = tandem("top", node(tmp_path), "--once").stdout
    device, head, *lines, rollout, trainer, gone = (line.rstrip() for line in output.splitlines())
    assert device == "gpu-0: busy 95.2 % of 42 s; exposed swap 4.8 % (2 s)"
    assert head.split() == ["tenant", "phase", "turns", "running", "waited", "swapped", "slowdown"]
    assert [line.split() for line in lines[:3]] == [
        ["team-a/rollout-0", "Waiting", "36s", "0", "0s", "34s", "2s"],
        ["team-a/trainer-0", "Yielded", "0s", "2", "20s", "12s", "1s", "1.65"],
        ["team-b/dpo/trainer", "(gone)", "1", "17s", "5s", "1s", "1.35"],
    ]
    told_of = "team-a/rollout-0", "rollout", "team-a/grpo", "47 % waiting for job team-b/dpo's"
    assert rollout.split(maxsplit=3)[:3] == list(told_of[:3])
    assert told_of[3] in rollout
    assert trainer.endswith("92 % waiting for job team-b/dpo's training steps")
    assert gone.endswith("83 % waiting for job team-a/grpo's training steps")


def test_top_as_json_has_every_figure(tmp_path: Path) -> None:
    all_of_it = told("top", node(tmp_path))
    assert all_of_it["t"] == 142.0
    assert all_of_it["devices"] == {
        "gpu-0": {"known_s": 42.0, "busy_s": 40.0, "exposed_swap_s": 2.0}
    }
    trainer = next(one for one in all_of_it["tenants"] if one["tenant"] == "team-a/trainer-0")
    assert (trainer["running_s"], trainer["waited_s"], trainer["swapped_s"]) == (20.0, 12.0, 1.0)
    assert trainer["slowdown"] == 1.65
    assert trainer["device_s"]["Running"] == 20.0
    (gone,) = all_of_it["gone"]
    assert (gone["tenant"], gone["job"], gone["running_s"]) == (None, "team-b/dpo", 17.0)


def test_explain_says_how_much_and_why(tmp_path: Path) -> None:
    output = tandem("explain", "team-a/trainer-0", node(tmp_path)).stdout
    assert [line.rstrip() for line in output.splitlines()] == [
        "team-a/trainer-0 (trainer of job team-a/grpo) is Yielded for 0 s",
        "slowdown 1.65: 20 s in 2 turns, and 13 s in which it wanted to run and did not",
        "   92 %       12 s  waiting for job team-b/dpo's training steps",
        "    8 %        1 s  swapping memory",
    ]
    (first, _) = told("explain", "team-a/trainer-0", tmp_path)["lost"]
    assert (first["why"], first["job"], first["role"]) == ("turn", "team-b/dpo", "trainer")
    assert (first["s"], first["share"]) == (12.0, 0.9231)


@pytest.mark.parametrize(
    ("called", "tenant", "role"),
    [
        ("team-a/rollout-0", "team-a/rollout-0", "rollout"),
        ("rollout-0", "team-a/rollout-0", "rollout"),
        ("team-a/grpo/rollout", "team-a/rollout-0", "rollout"),
        ("rollout", "team-a/rollout-0", "rollout"),
        ("team-b/dpo/trainer", None, "trainer"),
    ],
)
def test_a_tenant_is_known_by_name_by_pod_and_by_role(
    tmp_path: Path, called: str, tenant: str | None, role: str
) -> None:
    found = told("explain", called, node(tmp_path))
    assert (found["tenant"], found["role"]) == (tenant, role)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "trainer"], "trainer may be any of team-a/trainer-0, team-b/dpo/trainer"),
        (["explain", "nobody"], "no tenant is called nobody; there is team-a/rollout-0, team-a"),
    ],
)
def test_a_name_that_is_nobodys_is_refused_with_those_that_are(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = tandem(*arguments, node(tmp_path))
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("command", [["top"], ["explain", "x"], ["timeline"]])
def test_a_folder_without_events_is_refused(tmp_path: Path, command: list[str]) -> None:
    result = tandem(*command, tmp_path)
    assert result.exit_code == 2
    assert "no events.jsonl" in result.stderr


def test_events_of_another_version_are_refused(tmp_path: Path) -> None:
    line = {"kind": "accounts", "t": 1.0, "accounts": {"version": 99}}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    result = tandem("top", tmp_path)
    assert (result.exit_code, "use the Tandem version of the node" in result.stderr) == (2, True)


@pytest.mark.parametrize("width", [80, 100])
def test_top_fits_a_small_terminal(tmp_path: Path, width: int) -> None:
    told = io.StringIO()
    with closing(Books(node(tmp_path))) as books:
        Console(file=told, width=width).print(accounts_view.top(books.at(0.0)))
    assert "…" not in told.getvalue()
    assert "training steps" in " ".join(told.getvalue().split())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0s"), (0.0123, "12.3ms"), (59.94, "59.9s"), (61.0, "1m01s"), (7384.0, "2h03m")],
)
def test_a_duration_in_a_column(seconds: float, shown: str) -> None:
    assert figures.brief(seconds) == shown


# -- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (Cause(Why.TURN, DPO), "waiting for job team-b/dpo's training steps"),
        (Cause(Why.TURN, Group(GRPO.job, "rollout")), "waiting for its own job's rollouts"),
        (Cause(Why.TURN, Group("b", "judge")), "waiting for job b's turns of judge"),
        (Cause(Why.TURN, Group("", "x")), "waiting for turns of x"),
        (Cause(Why.TURN, OTHERS), "waiting for turns of other jobs"),
        (Cause(Why.FAULT, DPO), "waiting behind a fault of job team-b/dpo's trainer"),
        (
            Cause(Why.START, Group(GRPO.job, "rollout")),
            "waiting for its own job's rollout to start",
        ),
        (Cause(Why.SWAP), "swapping memory"),
        (Cause(Why.NOBODY), "waiting while no tenant had the devices"),
    ],
)
def test_a_cause_in_words(cause: Cause, said: str) -> None:
    assert words(cause, GRPO) == said


def test_reasons_are_shares_of_what_was_lost_the_largest_first() -> None:
    account = Account(
        lost={Cause(Why.SWAP): 28 * S, Cause(Why.TURN, Group("b", "trainer")): 72 * S}
    )
    assert [str(one) for one in reasons(account, GRPO)] == [
        "72 % waiting for job b's training steps",
        "28 % swapping memory",
    ]
    assert reasons(Account(), GRPO) == []
    assert reasons(handover().tenants["x"].account, GRPO) == []


# -- the timeline -------------------------------------------------------------------------------


def test_a_nodes_timeline_is_printed_and_claims_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "worker-7")
    page = tandem("timeline", node(tmp_path), "-o", "html").stdout
    assert "<h1>node worker-7</h1>" in page
    assert "team-a/trainer-0, team-b/trainer-0 taking turns for 42" in page
    assert "verdict" not in page.partition("</dl>")[0].partition("<body>")[2]
    trace = json.loads(tandem("timeline", tmp_path, "-o", "perfetto").stdout)
    assert trace["otherData"]["job"] == "node worker-7"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl"]


def test_the_last_seconds_alone_are_cut_out(tmp_path: Path) -> None:
    trace = json.loads(tandem("timeline", node(tmp_path), "--last", 15, "-o", "perfetto").stdout)
    stays = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert {one["name"] for one in stays if one["ts"] == 0} == {"Waiting", "Running"}
    assert max(one["ts"] + one["dur"] for one in stays) == 15e6
    passed = [one["name"] for one in trace["traceEvents"] if one["ph"] == "b"]
    assert passed == ["team-b/trainer-0 to team-a/trainer-0"]


def test_the_older_file_of_events_is_read_too(tmp_path: Path) -> None:
    synthetic = SyntheticRun(seed=5)
    synthetic.iterate(4)
    whole = read_run(synthetic.write(tmp_path / "whole", sample_every_s=0.1))
    parted = Path(shutil.copytree(tmp_path / "whole", tmp_path / "parted"))
    lines = (parted / "events.jsonl").read_text().splitlines(keepends=True)
    before(parted / "events.jsonl").write_text("".join(lines[:40]))
    (parted / "events.jsonl").write_text("".join(lines[40:]))
    assert read_run(parted) == whole
