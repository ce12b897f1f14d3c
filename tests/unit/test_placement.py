"""Does a set of pods fit one node? Against hand-made sums."""

from typing import Any

import pytest

from scheduler_extender import objects
from scheduler_extender.ledger import Ledger
from scheduler_extender.objects import Malformed, quantity
from scheduler_extender.placement import obstacle, reaches, readable
from scheduler_extender.world import World
from tests.unit import kube_objects as make

Raw = dict[str, Any]


def world(**kinds: list[Raw]) -> World:
    made = World(lambda: None)
    made.pods.replace(kinds.get("pods", []))
    made.nodes.replace(kinds.get("nodes", []))
    made.claims.replace(kinds.get("claims", []))
    made.slices.replace(kinds.get("slices", []))
    return made


def why_not(
    *pods: Raw,
    node: Raw | None = None,
    others: list[Raw] | None = None,
    claims: list[Raw] | None = None,
    slices: list[Raw] | None = None,
) -> str | None:
    """What keeps these pods from the node n1; `others` are there already."""
    raw = make.node("n1") if node is None else node
    claims = [make.claim("grpo", "rollout", "trainer")] if claims is None else claims
    slices = [make.slice_("n1", "gpu-0")] if slices is None else slices
    made = world(pods=[*pods, *(others or [])], nodes=[raw], claims=claims, slices=slices)
    placed = [objects.pod(one) for one in pods]
    room = made.room(objects.node(raw), Ledger(), besides=placed)
    return obstacle(placed, tuple(made.claims_of(placed).values()), room)


PAIR = (make.pod("rollout", "rollout"), make.pod("trainer", "trainer"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1500m", 1.5),
        ("1.5Gi", 1.5 * 2**30),
        ("2G", 2 * 10**9),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        (".5", 0.5),
        ("100u", 0.0001),
        (3, 3),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str | int, number: float) -> None:
    assert float(quantity(text)) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1.2.3", "one"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        quantity(text)


def test_amounts_are_told_as_people_write_them() -> None:
    assert readable("cpu", 1500) == "1500m"
    assert readable("cpu", 2000) == "2"
    assert readable("memory", 5 * 2**29) == "2.5Gi"
    assert readable("memory", 196 * 2**20) == "196Mi"
    assert readable("memory", 0) == "0"
    assert readable("example.com/nic", 3) == "3"


def asked(resources: Raw, **members: Any) -> Raw:
    return {"name": "c", "resources": {"requests": resources}, **members}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [asked({"cpu": "1"}), asked({"cpu": "500m"})]}, 1500),
        # An init container runs alone: only the largest counts.
        (
            {"containers": [asked({"cpu": "1"})], "initContainers": [asked({"cpu": "3"})]},
            3000,
        ),
        # KEP-753: a sidecar runs beside the containers, and beside the init containers after it.
        (
            {
                "containers": [asked({"cpu": "1"})],
                "initContainers": [asked({"cpu": "2"}, restartPolicy="Always")],
            },
            3000,
        ),
        (
            {
                "containers": [asked({"cpu": "1"})],
                "initContainers": [
                    asked({"cpu": "4"}),
                    asked({"cpu": "2"}, restartPolicy="Always"),
                    asked({"cpu": "3"}),
                ],
            },
            5000,
        ),
        ({"containers": [asked({"cpu": "1"})], "overhead": {"cpu": "250m"}}, 1250),
        # KEP-2837: what the pod says as a whole takes the place of its containers' sum.
        ({"containers": [asked({"cpu": "1"})], "resources": {"requests": {"cpu": "2"}}}, 2000),
        ({"containers": [{"name": "c"}]}, 0),
    ],
)
def test_a_pods_requests_are_summed_as_the_scheduler_does(spec: Raw, cpu: int) -> None:
    raw = {"metadata": {"namespace": "lab", "name": "p", "uid": "u"}, "spec": spec}
    requests = objects.pod(raw).requests
    assert requests.get("cpu", 0) == cpu
    assert requests["pods"] == 1


def test_the_marker_is_no_resource_of_a_node() -> None:
    marked = asked({"cpu": "1", "tandem-gpu.io/turn": "1"})
    raw = {"metadata": {"namespace": "lab", "name": "p"}, "spec": {"containers": [marked]}}
    assert objects.pod(raw).requests == {"cpu": 1000, "pods": 1}


def test_a_pair_fits_an_empty_node() -> None:
    assert why_not(*PAIR) is None


def test_a_pair_needs_room_for_both() -> None:
    small = make.node("n1", memory="3Gi")
    big = make.pod("rollout", "rollout", memory="2Gi")
    assert why_not(big, node=small) is None
    other = make.pod("trainer", "trainer", memory="1.5Gi")
    assert why_not(big, other, node=small) == "memory: 3.5Gi asked, 3Gi of 3Gi free"


def test_what_is_on_the_node_counts_and_what_has_ended_does_not() -> None:
    there = make.pod("there", node="n1", cpu="7", claims=())
    assert why_not(*PAIR, others=[there]) == "cpu: 2 asked, 1 of 8 free"
    ended = there | {"status": {"phase": "Succeeded"}}
    assert why_not(*PAIR, others=[ended]) is None
    ending = make.pod("there", node="n1", cpu="7", claims=(), ending=True)
    assert why_not(*PAIR, others=[ending]) == "cpu: 2 asked, 1 of 8 free"


def test_extended_resources_count() -> None:
    nic = make.pod("rollout", "rollout")
    nic["spec"]["containers"][0]["resources"]["requests"]["example.com/nic"] = "1"
    assert why_not(nic) == "example.com/nic: 1 asked, 0 of 0 free"


def test_a_node_takes_only_so_many_pods() -> None:
    full = make.node("n1")
    full["status"]["allocatable"]["pods"] = "1"
    assert why_not(*PAIR, node=full) == "pods: 2 asked, 1 of 1 free"


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_keep_away_whoever_does_not_tolerate_them(
    toleration: Raw | None, fits: bool
) -> None:
    tolerations = [] if toleration is None else [toleration]
    pod = make.pod("rollout", "rollout", tolerations=tolerations)
    why = why_not(pod, node=make.node("n1", taints=[TAINT]))
    assert (why is None) is fits
    if why is not None:
        assert why == "pod rollout does not tolerate taint gpu=yes:NoSchedule"


def test_a_preference_keeps_nobody_away() -> None:
    soft = make.node("n1", taints=[TAINT | {"effect": "PreferNoSchedule"}])
    assert why_not(*PAIR, node=soft) is None


def test_a_cordoned_node_takes_nobody() -> None:
    why = why_not(*PAIR, node=make.node("n1", unschedulable=True))
    assert why is not None
    assert "node.kubernetes.io/unschedulable" in why


def affinity(*expressions: Raw, part: str = "matchExpressions") -> Raw:
    terms = {"nodeSelectorTerms": [{part: list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, True),
        ({"nodeSelector": {"kubernetes.io/hostname": "n2"}}, False),
        ({"affinity": affinity({"key": "rack", "operator": "In", "values": ["7"]})}, True),
        ({"affinity": affinity({"key": "rack", "operator": "NotIn", "values": ["7"]})}, False),
        ({"affinity": affinity({"key": "zone", "operator": "NotIn", "values": ["a"]})}, True),
        ({"affinity": affinity({"key": "rack", "operator": "Exists"})}, True),
        ({"affinity": affinity({"key": "rack", "operator": "DoesNotExist"})}, False),
        ({"affinity": affinity({"key": "rack", "operator": "Gt", "values": ["6"]})}, True),
        ({"affinity": affinity({"key": "rack", "operator": "Lt", "values": ["7"]})}, False),
        ({"affinity": affinity({"key": "zone", "operator": "Lt", "values": ["7"]})}, False),
        ({"affinity": affinity()}, False),  # an empty term selects nothing
        (
            {
                "affinity": affinity(
                    {"key": "metadata.name", "operator": "In", "values": ["n1"]},
                    part="matchFields",
                )
            },
            True,
        ),
    ],
)
def test_a_pod_goes_only_where_it_selects(spec: Raw, fits: bool) -> None:
    labelled = make.node("n1")
    labelled["metadata"]["labels"]["rack"] = "7"
    why = why_not(make.pod("rollout", "rollout", **spec), node=labelled)
    assert (why is None) is fits


def test_an_allocated_claim_is_reached_only_where_its_devices_are() -> None:
    allocated = objects.claim(make.claim("grpo", "rollout", node="n2"))
    assert not reaches([allocated], objects.node(make.node("n1")))
    assert reaches([allocated], objects.node(make.node("n2")))


def test_a_node_without_devices_takes_no_claim() -> None:
    assert why_not(*PAIR, slices=[]) == (
        "ResourceClaim grpo asks 1 device(s) of class tandem-gpu, 0 of 0 free"
    )


def test_a_device_that_another_claim_has_is_not_free() -> None:
    mine, other = make.claim("grpo", "rollout"), make.claim("other", "rollout", node="n1")
    why = why_not(PAIR[0], claims=[mine, other])
    assert why == "ResourceClaim grpo asks 1 device(s) of class tandem-gpu, 0 of 1 free"
    assert (
        why_not(PAIR[0], claims=[mine, other], slices=[make.slice_("n1", "gpu-0", "gpu-1")]) is None
    )


def test_a_claim_that_is_allocated_there_needs_no_other_device() -> None:
    assert why_not(*PAIR, claims=[make.claim("grpo", "rollout", "trainer", node="n1")]) is None


def test_a_tainted_device_is_not_handed_out() -> None:
    broken = make.slice_("n1", "gpu-0", taints=[{"key": "broken", "effect": "NoExecute"}])
    assert why_not(*PAIR, slices=[broken]) == (
        "ResourceClaim grpo asks 1 device(s) of class tandem-gpu, 0 of 1 free, 1 tainted"
    )
    noted = make.slice_("n1", "gpu-0", taints=[{"key": "noted", "effect": "None"}])
    assert why_not(*PAIR, slices=[noted]) is None


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old, new = make.slice_("n1", "gpu-0", "gpu-1"), make.slice_("n1", "gpu-0", generation=2)
    two = [make.claim("grpo", "rollout", "trainer", count=2)]
    assert why_not(*PAIR, claims=two, slices=[old]) is None
    assert why_not(*PAIR, claims=two, slices=[old, new]) is not None


SLOTS: Raw = {
    "allowMultipleAllocations": True,
    "capacity": {
        "slots": {
            "value": "2",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "2"}},
        }
    },
}


@pytest.mark.parametrize(
    ("asks", "taken", "fits"),
    [
        (None, ["1"], True),  # the policy's default is one
        (None, ["1", "1"], False),
        ({"slots": "2"}, [], True),
        ({"slots": "2"}, ["1"], False),
        ({"turns": "1"}, [], False),  # the device has no such thing
    ],
)
def test_a_shared_device_is_taken_by_its_capacity(
    asks: dict[str, str] | None, taken: list[str], fits: bool
) -> None:
    others = [
        make.claim(f"other-{number}", node="n1", capacity={"slots": slots})
        for number, slots in enumerate(taken)
    ]
    mine = make.claim("grpo", "rollout", capacity=asks)
    slices = [make.slice_("n1", "gpu-0", **SLOTS)]
    assert (why_not(PAIR[0], claims=[mine, *others], slices=slices) is None) is fits


def test_capacity_without_a_policy_is_taken_whole() -> None:
    memory: Raw = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    slices = [make.slice_("n1", "gpu-0", **memory)]
    mine = make.claim("grpo", "rollout")
    assert why_not(PAIR[0], claims=[mine], slices=slices) is None
    other = make.claim("other", node="n1", capacity={"memory": "80Gi"})
    assert why_not(PAIR[0], claims=[mine, other], slices=slices) is not None


def test_all_of_a_nodes_devices_are_asked_for_at_once() -> None:
    every = make.claim("grpo", "rollout")
    every["spec"]["devices"]["requests"][0]["exactly"] = {
        "deviceClassName": "tandem-gpu",
        "allocationMode": "All",
    }
    slices = [make.slice_("n1", "gpu-0", "gpu-1")]
    assert why_not(PAIR[0], claims=[every], slices=slices) is None
    other = make.claim("other", node="n1")
    assert why_not(PAIR[0], claims=[every, other], slices=slices) is not None
    assert why_not(PAIR[0], claims=[every], slices=[]) is not None


@pytest.mark.parametrize("exactly", [{"deviceClassName": "nic"}, {"adminAccess": True}], ids=str)
def test_requests_that_take_no_device_of_ours_need_none(exactly: Raw) -> None:
    claim = make.claim("grpo", "rollout")
    claim["spec"]["devices"]["requests"][0]["exactly"] |= exactly
    assert why_not(PAIR[0], claims=[claim], slices=[]) is None


@pytest.mark.parametrize(("other", "fits"), [("tandem-gpu", False), ("nic", True)])
def test_of_alternatives_one_device_is_needed_if_all_are_ours(other: str, fits: bool) -> None:
    claim = make.claim("grpo", "rollout")
    alternatives = [
        {"name": "two", "deviceClassName": "tandem-gpu", "count": 2},
        {"name": "other", "deviceClassName": other},
    ]
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    assert why_not(PAIR[0], claims=[claim]) is None
    assert (why_not(PAIR[0], claims=[claim], slices=[]) is None) is fits


def test_an_admin_claim_on_a_device_leaves_it_free() -> None:
    # dra-driver-nvidia-gpu#817: an admin's claim on all devices took no slot of any tenant.
    admin = make.claim("admin", node="n1")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert why_not(*PAIR, claims=[make.claim("grpo", "rollout", "trainer"), admin]) is None


@pytest.mark.parametrize("raw", [{}, {"metadata": {}}, {"metadata": {"name": "x"}, "spec": None}])
def test_what_is_no_pod_is_malformed(raw: Raw) -> None:
    with pytest.raises(Malformed, match="not a Pod"):
        objects.pod(raw)


def test_an_object_that_cannot_be_read_is_told_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = make.pod("odd")
    odd["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
    made = world(pods=[odd, make.pod("good")])
    assert [pod.name for pod in made.pods.views.values()] == ["good"]
    assert "lab/odd: not a Pod" in caplog.text
