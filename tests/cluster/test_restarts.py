"""An engine's container is killed while the trainer has the turn: who starts again, and when?

With the rule RestartAllContainers (Kubernetes 1.36) the engine always waits for a turn of its own.
Without it the engine may start before its agent: then it is named, and nobody is granted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hack.cluster_commands import Raw
from tests.cluster.kube import UP_S, WITHIN_S
from tests.cluster.lab import Namespace, claim, half
from tests.cluster.turns import SOURCE, Turns, container, kill, tenant

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(UP_S + 900),
    pytest.mark.usefixtures("tandem"),
]

ROUNDS = 10
ENGINE = ("--host=127.0.0.1", "--port=8100", "--worker-cls=40")
WAKES = """
from urllib.request import urlopen
urlopen("http://127.0.0.1:8100/wake_up?tags=kv_cache", data=b"")
"""


def engine_pod() -> Raw:
    """An engine that has 40 MiB while it is awake, and before anybody parked it."""
    engine = container("engine", *ENGINE, program="engine")
    engine["env"].append({"name": "VLLM_SERVER_DEV_MODE", "value": "1"})
    pod = half("rollout", containers=[engine], volumes=[SOURCE])
    pod["metadata"]["annotations"]["tandem-gpu.io/engine"] = "vllm"
    return pod


@dataclass
class Pair:
    """A trainer that gives the turn away only when it is told to, and an engine."""

    lab: Namespace
    turns: Turns

    def let_the_engine_have_a_turn(self) -> None:
        """The turn that it waits for; afterwards the trainer has it, and the engine is parked."""
        before = len(self.turns.grants("trainer"))
        self.lab.tell("trainer", "main", "go")
        self.turns.until("trainer", "Running", before + 1)

    def starts(self) -> list[float]:
        """When processes of the pod's engine started."""
        command = ("sh", "-c", f"cat /var/log/pods/{self.lab.name}_rollout_*/engine/*.log")
        lines = self.lab.kube("exec", f"--node={self.turns.node}", "--", *command).splitlines()
        said = [line.split(" ", 3)[3] for line in lines]
        return sorted(json.loads(one)["started"] for one in said if one.startswith('{"started"'))

    def without_a_turn(self) -> list[float]:
        """Those starts that came while the engine's pod had no turn."""
        name = f"{self.lab.name}/rollout"
        changes = [
            (one["t"], one["to"])
            for one in self.turns.events()
            if one["kind"] == "phase" and one["tenant"] == name
        ]
        return [
            start
            for start in self.starts()
            if [phase for t, phase in changes if t <= start][-1:] != ["Restoring"]
        ]


@pytest.fixture
def pair(lab: Namespace) -> Iterator[Pair]:
    lab.create(claim(need="170Mi"), tenant("trainer", 160, "hold"), engine_pod())
    made = Pair(lab, Turns(lab, lab.node_of("trainer")))
    made.turns.until("trainer", "Running", 1)
    if not made.turns.grants("rollout"):
        made.turns.until("rollout", "Waiting", 1)
        made.let_the_engine_have_a_turn()
    yield made
    made.turns.assert_one_at_a_time(allowed=("Faulted", "Intruder"))


def test_with_the_rule_the_engine_waits_for_a_turn_of_its_own(lab: Namespace, pair: Pair) -> None:
    rollout = lab.pod("rollout")
    (engine,) = rollout["spec"]["containers"]
    assert {rule["action"] for rule in engine["restartPolicyRules"]} == {"RestartAllContainers"}
    for number in range(ROUNDS):
        kill(lab, "tests.cluster.engine")
        pair.turns.until("rollout", "Waiting", number + 2)
        pair.let_the_engine_have_a_turn()
    assert len(pair.starts()) == ROUNDS + 1
    assert pair.without_a_turn() == []
    assert pair.turns.conditions() == []


def test_an_engine_that_wakes_without_a_turn_is_parked_by_its_agent(
    lab: Namespace, pair: Pair
) -> None:
    parked = len(pair.turns.entered("rollout", "Parked"))
    lab.run("rollout", "engine", "python3", "-c", WAKES)
    pair.turns.until_named("rollout", 0.0)
    pair.turns.until("rollout", "Parked", parked + 1)
    pair.let_the_engine_have_a_turn()
    pair.turns.assert_nobody_granted_while_named()


def test_without_the_rule_each_that_slips_through_is_named(lab: Namespace, pair: Pair) -> None:
    admitted = lab.pod("rollout")
    lab.kube("kubectl", "delete", "mutatingwebhookconfiguration", "tandem-extender")
    bare: Raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: admitted["metadata"][key] for key in ("name", "annotations")},
        "spec": {key: value for key, value in admitted["spec"].items() if key != "nodeName"},
    }
    bare["metadata"]["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration", None)
    for one in bare["spec"]["containers"]:
        one.pop("restartPolicyRules", None)
        one.pop("restartPolicy", None)
    slipped = 0
    for _ in range(ROUNDS):
        # A new pod each time: a container that crashes again is started later and later.
        lab.delete("pod", "rollout")
        waited = len(pair.turns.entered("rollout", "Waiting"))
        lab.create(bare)
        pair.turns.until("rollout", "Waiting", waited + 1)
        pair.let_the_engine_have_a_turn()
        kill(lab, "tests.cluster.engine")
        # The agent ends with its engine, comes back and asks for a turn, whoever was first. One
        # that is refused, since its engine is an Intruder, ends again: the kubelet waits then.
        pair.turns.until("rollout", "Waiting", waited + 2, within_s=3 * WITHIN_S)
        if without := pair.without_a_turn():
            slipped += 1
            assert len(without) == 1
            pair.turns.until_named("rollout", without[0])
    print(f"{slipped} of {ROUNDS} started without a turn; each was named")
    pair.turns.assert_nobody_granted_while_named()
