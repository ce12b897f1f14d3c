"""Pods, claims and nodes in, decisions out."""

from typing import Any

import pytest

from scheduler_extender import filtering
from scheduler_extender.ledger import PROMISED_FOR_S, Ledger
from scheduler_extender.names import GATE
from scheduler_extender.objects import Malformed
from scheduler_extender.pairing import MESSAGE_MAX, Place, Reason, Wait, decide
from scheduler_extender.world import World
from tests.unit import kube_objects as make

Raw = dict[str, Any]

CLAIM = make.claim("grpo", "rollout", "trainer")
ROLLOUT = make.pod("rollout", "rollout")
TRAINER = make.pod("trainer", "trainer", created="2026-11-29T12:01:00Z")


class Cluster:
    """A cluster of two nodes with a device each, and what is decided there."""

    def __init__(self, *pods: Raw, claims: list[Raw] | None = None) -> None:
        self.changes = 0
        self.world = World(self._changed)
        self.ledger = Ledger()
        self.now = 0.0
        self.world.pods.replace(pods)
        self.world.claims.replace([CLAIM] if claims is None else claims)
        self.world.nodes.replace([make.node("n1"), make.node("n2")])
        self.world.slices.replace([make.slice_("n1", "gpu-0"), make.slice_("n2", "gpu-0")])

    def _changed(self) -> None:
        self.changes += 1

    def placed(self) -> dict[str, str]:
        """Pod to node."""
        decisions = decide(self.world, self.ledger, self.now)
        return {
            pod.name: decision.node
            for decision in decisions
            if isinstance(decision, Place)
            for pod in decision.pods
        }

    def waits(self) -> dict[str, Wait]:
        """By pod."""
        decisions = decide(self.world, self.ledger, self.now)
        return {one.pod.name: one for one in decisions if isinstance(one, Wait)}

    def reasons(self) -> dict[str, str]:
        return {name: wait.reason for name, wait in self.waits().items()}


def test_the_first_half_waits_for_its_partner() -> None:
    cluster = Cluster(ROLLOUT)
    assert cluster.placed() == {}
    wait = cluster.waits()["rollout"]
    assert wait.reason == Reason.WAITING_FOR_PARTNER
    assert "no pod has role trainer of ResourceClaim grpo" in wait.message
    assert wait.message.endswith(
        "create one in namespace lab that has the annotation tandem-gpu.io/role: trainer and "
        "refers to the same claim"
    )
    assert cluster.ledger.promises() == ()


def test_both_halves_are_placed_on_one_node_and_promised_it() -> None:
    cluster = Cluster(ROLLOUT, TRAINER)
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}
    assert {one.node for one in cluster.ledger.promises()} == {"n1"}
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}


def test_halves_of_other_namespaces_do_not_count() -> None:
    other = make.pod("trainer", "trainer", namespace="other")
    cluster = Cluster(ROLLOUT, other, claims=[CLAIM, make.claim("grpo", "trainer", namespace="x")])
    assert cluster.reasons() == {
        "rollout": Reason.WAITING_FOR_PARTNER,
        "trainer": Reason.WAITING_FOR_CLAIM,
    }


@pytest.mark.parametrize(
    "trainer",
    [
        make.pod("trainer", "trainer", ending=True),
        make.pod("trainer", "trainer") | {"status": {"phase": "Failed"}},
    ],
    ids=["ending", "ended"],
)
def test_a_partner_that_ends_is_none(trainer: Raw) -> None:
    assert Cluster(ROLLOUT, trainer).reasons() == {"rollout": Reason.WAITING_FOR_PARTNER}


def test_a_claim_without_roles_needs_no_partner() -> None:
    assert Cluster(ROLLOUT, claims=[make.claim("grpo")]).placed() == {"rollout": "n1"}


def test_pods_of_a_claim_without_roles_still_go_to_one_node() -> None:
    cluster = Cluster(ROLLOUT, claims=[make.claim("grpo")])
    assert cluster.placed() == {"rollout": "n1"}
    cluster.world.nodes.put(make.node("n1", unschedulable=True))
    cluster.world.pods.put(make.without_gate(ROLLOUT))
    cluster.world.pods.put(make.on_node(ROLLOUT, "n1"))
    cluster.world.pods.put(TRAINER)  # the allocation is not in our cache yet
    assert cluster.reasons() == {"trainer": Reason.WAITING_FOR_ROOM}
    cluster.world.nodes.put(make.node("n1"))
    assert cluster.placed() == {"trainer": "n1"}


def test_a_template_makes_a_claim_of_one_pod() -> None:
    templated = make.pod("rollout", "rollout")
    templated["spec"]["resourceClaims"] = [{"name": "c0", "resourceClaimTemplateName": "own"}]
    cluster = Cluster(templated, claims=[make.claim("rollout-c0-x7", "rollout", "trainer")])
    assert cluster.reasons() == {"rollout": Reason.WAITING_FOR_CLAIM}
    templated["status"]["resourceClaimStatuses"] = [
        {"name": "c0", "resourceClaimName": "rollout-c0-x7"}
    ]
    cluster.world.pods.put(templated)
    wait = cluster.waits()["rollout"]
    assert wait.reason == Reason.WAITING_FOR_PARTNER
    assert "a claim made from a template (own) is one pod's alone" in wait.message
    cluster.world.claims.put(make.claim("rollout-c0-x7", "rollout"))
    assert cluster.placed() == {"rollout": "n1"}


def test_a_claim_that_does_not_exist_is_named() -> None:
    wait = Cluster(ROLLOUT, claims=[]).waits()["rollout"]
    assert wait.reason == Reason.WAITING_FOR_CLAIM
    assert wait.message == "ResourceClaim grpo does not exist: create it in namespace lab"


def config(**parameters: Any) -> Raw:
    claim = make.claim("grpo", "rollout", "trainer")
    claim["spec"]["devices"]["config"][0]["opaque"]["parameters"] |= parameters
    return claim


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (config(roles={}), "spec.devices.config[0].opaque.parameters.roles: "),
        (config(roles={"Rollout": {}}), "roles.Rollout: must be a name of lower-case letters"),
        (config(roles="rollout"), "parameters.roles: Input should be a valid dictionary"),
        (config(kind="ClassConfig"), "parameters.kind: Input should be 'ClaimConfig'"),
        (config(apiVersion="tandem-gpu.io/v2"), "parameters.apiVersion: "),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named_by_its_path(claim: Raw, words: str) -> None:
    wait = Cluster(ROLLOUT, TRAINER, claims=[claim]).waits()["rollout"]
    assert wait.reason == Reason.INVALID_CLAIM
    assert words in wait.message


def test_a_second_configuration_is_a_fault_and_a_strangers_is_none() -> None:
    claim = make.claim("grpo", "rollout")
    ours = claim["spec"]["devices"]["config"][0]
    claim["spec"]["devices"]["config"].append(ours)
    wait = Cluster(ROLLOUT, claims=[claim]).waits()["rollout"]
    assert "config[1].opaque.parameters: a claim has one ClaimConfig" in wait.message
    claim["spec"]["devices"]["config"][1] = {"opaque": {"driver": "nic", "parameters": {"a": 1}}}
    assert Cluster(ROLLOUT, claims=[claim]).placed() == {"rollout": "n1"}


def test_a_role_that_the_claim_does_not_name_is_told_and_fills_none() -> None:
    critic = make.pod("critic", "critic")
    cluster = Cluster(ROLLOUT, critic)
    assert cluster.reasons() == {
        "critic": Reason.INVALID_ROLE,
        "rollout": Reason.WAITING_FOR_PARTNER,
    }
    assert "(rollout, trainer)" in cluster.waits()["critic"].message


def test_a_role_is_played_by_one_pod_at_a_time() -> None:
    # LLMKube#192: a Deployment's surge pod on a shared claim.
    surge = make.pod("surge", "rollout", created="2026-11-29T14:00:00Z")
    cluster = Cluster(
        make.on_node(ROLLOUT, "n1"),
        make.on_node(TRAINER, "n1"),
        surge,
        claims=[make.claim("grpo", "rollout", "trainer", node="n1")],
    )
    wait = cluster.waits()["surge"]
    assert wait.reason == Reason.ROLE_TAKEN
    assert "taken by pod rollout" in wait.message
    assert "strategy to Recreate" in wait.message
    cluster.world.pods.put(make.pod("rollout", "rollout", node="n1", ending=True))
    assert cluster.placed() == {"surge": "n1"}


def test_of_two_for_one_role_the_older_goes_first() -> None:
    younger = make.pod("a-younger", "rollout", created="2026-11-29T14:00:00Z")
    cluster = Cluster(younger, ROLLOUT, TRAINER)
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}
    assert cluster.reasons() == {"a-younger": Reason.ROLE_TAKEN}


def test_a_half_that_is_made_anew_joins_the_one_that_runs() -> None:
    cluster = Cluster(
        make.on_node(TRAINER, "n2"),
        ROLLOUT,
        claims=[make.claim("grpo", "rollout", "trainer", node="n2")],
    )
    assert cluster.placed() == {"rollout": "n2"}


def test_a_half_that_is_made_anew_waits_until_the_running_ones_node_has_room() -> None:
    cluster = Cluster(
        make.on_node(TRAINER, "n2"),
        make.pod("big", node="n2", cpu="7", claims=()),
        ROLLOUT,
        claims=[make.claim("grpo", "rollout", "trainer", node="n2")],
    )
    wait = cluster.waits()["rollout"]
    assert wait.reason == Reason.WAITING_FOR_ROOM
    assert wait.message == (
        "no node where ResourceClaim grpo is allocated has room for rollout: "
        "n2: cpu: 1 asked, 0 of 8 free"
    )
    cluster.world.pods.drop(make.pod("big", node="n2", claims=()))
    assert cluster.placed() == {"rollout": "n2"}


def test_a_pair_that_fits_no_one_node_waits_with_the_numbers() -> None:
    rollout, trainer = (make.pod(name, name, memory="10Gi") for name in ("rollout", "trainer"))
    cluster = Cluster(rollout, trainer)
    assert cluster.reasons() == {
        "rollout": Reason.WAITING_FOR_ROOM,
        "trainer": Reason.WAITING_FOR_ROOM,
    }
    assert cluster.waits()["trainer"].message == (
        "no node has room for rollout and trainer together: "
        "n1, n2: memory: 20Gi asked, 16Gi of 16Gi free"
    )
    cluster.world.nodes.put(make.node("n2", memory="20Gi"))
    assert cluster.placed() == {"rollout": "n2", "trainer": "n2"}


def test_many_nodes_are_told_in_few_words() -> None:
    cluster = Cluster(ROLLOUT, TRAINER)
    cluster.world.slices.replace([])
    cluster.world.nodes.replace(
        make.node(f"{'long-' * 20}{number}", memory=f"{number}Mi") for number in range(1, 100)
    )
    message = cluster.waits()["rollout"].message
    assert "and 94 more" in message
    cluster.world.claims.put(make.claim("grpo", "rollout", "trainer", node="n1"))
    assert "there is none" in cluster.waits()["rollout"].message
    no_device = make.claim("grpo", "rollout", "trainer")
    no_device["spec"]["devices"]["requests"] = []
    cluster.world.claims.put(no_device)
    message = cluster.waits()["rollout"].message
    assert len(message) == MESSAGE_MAX
    assert message.endswith("...")


def test_what_was_promised_is_not_given_twice() -> None:
    # HAMi#2470: two jobs were booked on one device.
    claims = [CLAIM, make.claim("sft", "rollout", "trainer"), make.claim("ppo", "rollout")]
    pods = [
        make.pod(f"{claim}-{role}", role, claims=(claim,), created=f"2026-11-29T12:0{n}:00Z")
        for n, (claim, role) in enumerate(
            [("grpo", "rollout"), ("grpo", "trainer"), ("sft", "rollout"), ("sft", "trainer")]
        )
    ]
    third = make.pod("third", "rollout", claims=("ppo",), created="2026-11-29T13:00:00Z")
    cluster = Cluster(*pods, third, claims=claims)
    assert cluster.placed() == {
        "grpo-rollout": "n1",
        "grpo-trainer": "n1",
        "sft-rollout": "n2",
        "sft-trainer": "n2",
    }
    message = cluster.waits()["third"].message
    assert "n1, n2: ResourceClaim ppo asks 1 device(s) of class tandem-gpu" in message


def test_memory_that_was_promised_counts_as_used() -> None:
    # Both nodes have two devices, but n1 has memory for one pair only.
    claims = [make.claim(name, "rollout") for name in ("a", "b")]
    pods = [make.pod(name, "rollout", claims=(name,), memory="10Gi") for name in ("a", "b")]
    cluster = Cluster(*pods, claims=claims)
    cluster.world.slices.replace([make.slice_("n1", "gpu-0", "gpu-1"), make.slice_("n2", "gpu-0")])
    placed = cluster.placed()
    assert set(placed.values()) == {"n1", "n2"}


def test_the_fullest_node_that_fits_is_taken() -> None:
    cluster = Cluster(ROLLOUT, TRAINER)
    cluster.world.slices.put(make.slice_("n1", "gpu-0", "gpu-1"))
    assert cluster.placed() == {"rollout": "n2", "trainer": "n2"}


def test_a_strangers_gate_is_waited_for_and_named_and_no_room_is_kept() -> None:
    # kueue#9482
    gated = make.pod("trainer", "trainer", gates=("example.com/quota", GATE))
    cluster = Cluster(ROLLOUT, TRAINER)
    cluster.placed()
    cluster.world.pods.put(gated)
    assert cluster.placed() == {}
    assert cluster.ledger.promises() == ()
    waits = cluster.waits()
    assert {wait.reason for wait in waits.values()} == {Reason.WAITING_FOR_GATE}
    assert len(waits) == 2
    assert (
        "scheduling gate example.com/quota of pod trainer is not ours" in waits["rollout"].message
    )
    cluster.world.pods.put(TRAINER)
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}


def test_after_a_restart_pods_on_their_way_are_placed_from_a_list() -> None:
    first, second = make.without_gate(ROLLOUT), make.without_gate(TRAINER)
    cluster = Cluster(first, second)
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}
    # One of them is on its node already: the other follows it.
    cluster = Cluster(make.on_node(ROLLOUT, "n2"), second)
    assert cluster.placed() == {"trainer": "n2"}
    # Or the claim says where.
    cluster = Cluster(first, second, claims=[make.claim("grpo", "rollout", "trainer", node="n2")])
    assert cluster.placed() == {"rollout": "n2", "trainer": "n2"}


def test_one_on_its_way_that_loses_its_partner_stays_with_its_claim() -> None:
    cluster = Cluster(make.without_gate(ROLLOUT))
    assert cluster.reasons() == {"rollout": Reason.WAITING_FOR_PARTNER}
    cluster.world.claims.put(make.claim("grpo", "rollout", "trainer", node="n2"))
    assert cluster.placed() == {"rollout": "n2"}


def test_a_node_that_the_scheduler_does_not_take_is_tried_again_last() -> None:
    cluster = Cluster(ROLLOUT, TRAINER)
    assert cluster.placed()["rollout"] == "n1"
    cluster.world.pods.replace([make.without_gate(ROLLOUT), make.without_gate(TRAINER)])
    cluster.now += PROMISED_FOR_S - 1
    assert cluster.placed()["rollout"] == "n1"
    cluster.now += 1
    assert cluster.placed() == {"rollout": "n2", "trainer": "n2"}
    cluster.now += PROMISED_FOR_S
    assert cluster.placed() == {"rollout": "n1", "trainer": "n1"}


def test_several_claims_join_all_their_pods() -> None:
    claims = [make.claim("a", "rollout", "trainer"), make.claim("b", "trainer", "judge")]
    rollout = make.pod("rollout", "rollout", claims=("a",))
    trainer = make.pod("trainer", "trainer", claims=("a", "b"))
    judge = make.pod("judge", "judge", claims=("b",))
    cluster = Cluster(rollout, trainer, claims=claims)
    cluster.world.slices.put(make.slice_("n2", "gpu-0", "gpu-1"))
    assert set(cluster.reasons()) == {"rollout", "trainer"}
    cluster.world.pods.put(judge)
    assert cluster.placed() == {"rollout": "n2", "trainer": "n2", "judge": "n2"}


def test_only_what_matters_is_a_change() -> None:
    cluster = Cluster(ROLLOUT)
    before = cluster.changes
    touched = make.pod("rollout", "rollout")
    touched["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    touched["metadata"]["resourceVersion"] = "2"
    cluster.world.pods.put(touched)
    assert cluster.changes == before
    cluster.world.pods.put(make.without_gate(ROLLOUT))
    assert cluster.changes == before + 1


# -- kube-scheduler's questions -----------------------------------------------------------------


def question(**envelope: Any) -> filtering.Question:
    return filtering.question({"Pod": ROLLOUT, "Nodes": None, "NodeNames": ["n1", "n2"]} | envelope)


def test_only_the_promised_node_passes() -> None:
    answer = filtering.filtered(question(), filtering.Whereabouts("n2", ""))
    assert answer == {
        "NodeNames": ["n2"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n1": "the pod was promised node n2"},
        "Error": "",
    }
    assert filtering.prioritized(question(), filtering.Whereabouts("n2", "")) == [
        {"Host": "n1", "Score": 0},
        {"Host": "n2", "Score": 10},
    ]


def test_a_pod_that_waits_passes_nowhere_and_it_is_said_why() -> None:
    answer = filtering.filtered(question(), filtering.Whereabouts(None, "it waits"))
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "it waits", "n2": "it waits"}


def test_a_pod_that_is_none_of_ours_passes_everywhere() -> None:
    assert filtering.filtered(question(), None)["NodeNames"] == ["n1", "n2"]
    assert filtering.prioritized(question(), None) == [
        {"Host": "n1", "Score": 0},
        {"Host": "n2", "Score": 0},
    ]


def test_the_envelopes_case_does_not_matter_and_no_node_is_none() -> None:
    asked = filtering.question({"pod": ROLLOUT, "nodenames": ["n1"]})
    assert asked.nodes == ("n1",)
    assert question(NodeNames=None).nodes == ()


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"NodeNames": ["n1"]},
        {"Pod": "x", "NodeNames": ["n1"]},
        {"Pod": ROLLOUT, "NodeNames": "n1"},
        {"Pod": ROLLOUT, "NodeNames": [1]},
        {"Pod": ROLLOUT, "NodeNames": None, "Nodes": {"items": []}},
    ],
)
def test_what_no_scheduler_sends_is_malformed(body: Any) -> None:
    with pytest.raises(Malformed):
        filtering.question(body)
