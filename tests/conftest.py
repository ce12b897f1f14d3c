"""What runs beside what when two tests run at a time (hack/test), and what ends one that hangs."""

import faulthandler
import os
import signal
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ONE_AT_A_TIME = ("tests/cluster/", "tests/demo/")
"""Each of these alone is as much as one of two cores can do."""

GRACE_S = 120.0
"""What a test has to end after its own timeout."""

TRACES = pytest.StashKey[int]()
"""A descriptor for traces, which pytest does not capture."""


class Rooms(LoadScopeScheduling):
    """The tests of a file run one after the other, and those of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return next((folder for folder in ONE_AT_A_TIME if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Rooms:
    return Rooms(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control starts what is to run in the background with both ignored, which
    # the processes of the tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[TRACES] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that its timeout cannot end, since it waits in C, ends its process with a trace."""
    marker = item.get_closest_marker("timeout")
    own = marker.args[0] if marker else float(item.config.getini("timeout"))
    faulthandler.dump_traceback_later(own + GRACE_S, exit=True, file=item.config.stash[TRACES])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
