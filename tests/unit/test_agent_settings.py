"""The arguments and the environment of `python -m workload_agents`."""

from pathlib import Path

import pytest

from workload_agents.__main__ import Settings, SettingsError, settings

ARGUMENTS = {
    "--role": "rollout",
    "--engine": "vllm",
    "--engine-url": "http://127.0.0.1:8100",
    "--listen": "127.0.0.1:8000",
    "--wait-s": "600",
}
ENVIRONMENT = {"TANDEM_SOCKET_DIR": "/run/tandem/claim", "TANDEM_WEIGHTS_DIR": "/run/weights"}


def parsed(environment: dict[str, str] = ENVIRONMENT, **changed: str) -> Settings:
    given = ARGUMENTS | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return settings([word for pair in given.items() for word in pair], environment)


def test_all_that_is_needed() -> None:
    assert parsed() == Settings(
        role="rollout",
        engine_url="http://127.0.0.1:8100",
        host="127.0.0.1",
        port=8000,
        wait_s=600.0,
        engine_weights=None,
        socket=Path("/run/tandem/claim/turns.sock"),
        weights=Path("/run/weights"),
    )


def test_the_weights_of_an_engine_have_a_size() -> None:
    assert parsed(engine_weights="16106127360").engine_weights == 15 << 30
    for wrong in ("15Gi", "0", "-1", "1.5"):
        with pytest.raises(SettingsError, match="--engine-weights: must be a number of bytes > 0"):
            parsed(engine_weights=wrong)


def test_every_fault_is_told_in_one_line() -> None:
    with pytest.raises(SettingsError) as error:
        parsed({}, listen="8000", engine_url="127.0.0.1:8100", wait_s="-1")
    message = str(error.value)
    assert "\n" not in message
    for fault in (
        "TANDEM_SOCKET_DIR is not set",
        "TANDEM_WEIGHTS_DIR is not set",
        "--listen: must be HOST:PORT, got 8000",
        "--engine-url: must be http://HOST:PORT, got 127.0.0.1:8100",
        "--wait-s: must be a number > 0, got -1",
    ):
        assert fault in message


@pytest.mark.parametrize("listen", ["", ":8000", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_listen(listen: str) -> None:
    with pytest.raises(SettingsError, match="--listen: must be"):
        parsed(listen=listen)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1", "http://", "http://127.0.0.1:1/v1", "http://127.0.0.1:1?a=b"]
)
def test_engine_url(url: str) -> None:
    with pytest.raises(SettingsError, match="--engine-url: must be"):
        parsed(engine_url=url)


@pytest.mark.parametrize("wait_s", ["0", "nan", "inf", "ten"])
def test_wait(wait_s: str) -> None:
    with pytest.raises(SettingsError, match="--wait-s: must be"):
        parsed(wait_s=wait_s)
