"""The demo, once for all tests that look at it or compare with it."""

import pytest

from tests.demo.running import Demo, demo


@pytest.fixture(scope="session")
def whole_demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`hack/demo` as it comes."""
    return demo(tmp_path_factory.mktemp("demo") / "out", timeout_s=580)
