"""The example as the cluster's demo applies it: rendered by kustomize, told steps and seed."""

import pytest

from hack import cluster_example
from hack.cluster_commands import Raw
from hack.cluster_example import Example


@pytest.fixture(name="objects", scope="module")
def _objects() -> list[Raw]:
    return cluster_example.rendered(cluster_example.EXAMPLE)


def commands(example: Example) -> list[list[str]]:
    return [
        container["command"]
        for pod in example.pods.values()
        for key in ("initContainers", "containers")
        for container in pod["spec"][key]
    ]


def test_pods_claim_and_halves_are_found(objects: list[Raw]) -> None:
    example = cluster_example.example(objects, None, 0)
    assert example.roles == {"default/rollout": "rollout", "default/trainer": "trainer"}
    assert example.claim == "grpo"
    kinds = sorted(one["kind"] for one in example.half)
    assert kinds == ["ConfigMap", "Pod", "ResourceClaim", "Service"]
    assert len(example.objects) == len(example.half) + 1


def test_both_halves_start_from_the_model_of_the_seed(objects: list[Raw]) -> None:
    plain = commands(cluster_example.example(objects, None, 0))
    given = commands(cluster_example.example(objects, 7, 42))
    seeded = [command for command in given if "--seed=42" in command]
    assert [command[1] for command in seeded] == [
        "/script/tiny_model.py",
        "/script/tiny_model.py",
        "-u",
    ]
    assert [command for command in given if "--steps=7" in command] == [seeded[-1]]
    assert not any("--steps" in word for command in plain for word in command)
    # The manifest itself is as it was.
    assert commands(Example(tuple(objects))) != plain
