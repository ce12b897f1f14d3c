"""A cluster for all tests, and Tandem in it for those of a module."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from hack import cluster_example, cluster_install
from tests.cluster.kube import WITHIN_S, Kube
from tests.cluster.lab import Namespace


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("hack/localkube needs root")


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """Two nodes, and nothing in them."""
    made = Kube(tmp_path_factory.mktemp("kube") / "kube")
    try:
        made.up(nodes=2)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def tandem(kube: Kube) -> Iterator[None]:
    """Tandem in the cluster, as an admin installs it; gone afterwards."""
    objects = cluster_example.rendered(cluster_example.OVERLAYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_LOCALKUBE", str(kube.state))
        asyncio.run(cluster_install.install(objects, print))
    yield
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kube(
        *("kubectl", "delete", "--ignore-not-found", f"--timeout={WITHIN_S}s", "-f", "-"),
        stdin=items,
        within_s=120,
    )
    kube("scheduler")


@pytest.fixture
def lab(kube: Kube, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = request.node.name.replace("_", "-")[:63].strip("-")
    kube("kubectl", "create", "namespace", name)
    namespace = Namespace(kube, name)
    namespace.until("serviceaccounts", lambda one: one["metadata"]["name"] == "default")
    yield namespace
    kube("kubectl", "delete", "namespace", name, f"--timeout={WITHIN_S}s", within_s=120)
