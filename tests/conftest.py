"""What runs beside what when two tests run at a time (hack/test)."""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ONE_AT_A_TIME = ("tests/cluster/", "tests/demo/")
"""Each of these alone is as much as one of two cores can do."""


class Rooms(LoadScopeScheduling):
    """The tests of a file run one after the other, and those of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return next((folder for folder in ONE_AT_A_TIME if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Rooms:
    return Rooms(config, log)
