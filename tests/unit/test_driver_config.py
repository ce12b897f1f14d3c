"""The driver's file: what it may say, and that the manifests agree with it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.plugin import MetricsConfig, SettingsError, load

ROOT = Path(__file__).resolve().parents[2]
DEVICES = "devices: {gpu-0: {simulated: 1Mi}}\n"


def file(folder: Path, content: str) -> Path:
    path = folder / "driver.yaml"
    path.write_text(content)
    return path


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "manifests/base/driver.yaml").read_text()))


def test_nothing_listens_unless_the_file_says_where(tmp_path: Path) -> None:
    assert load(file(tmp_path, DEVICES)).metrics is None
    said = load(file(tmp_path, DEVICES + 'metrics: {host: "::", port: 9464}\n'))
    assert said.metrics == MetricsConfig(host="::", port=9464)


@pytest.mark.parametrize(
    ("metrics", "faults"),
    [
        ("{host: 127.0.0.1}", "metrics.port: is missing"),
        ("{host: 127.0.0.1, port: 0}", "metrics.port: Input should be greater"),
        ("{port: 9464}", "metrics.host: is missing"),
        ("{host: a, port: 9464, path: /}", "metrics.path: unknown key"),
    ],
)
def test_a_fault_names_its_key(tmp_path: Path, metrics: str, faults: str) -> None:
    with pytest.raises(SettingsError, match=faults):
        load(file(tmp_path, f"{DEVICES}metrics: {metrics}\n"))


def test_a_device_keeps_some_in_reserve(tmp_path: Path) -> None:
    device = load(file(tmp_path, "devices: {gpu-0: {simulated: 4Mi, reserve: 1Mi}}\n"))
    assert device.devices["gpu-0"].reserve == 1 << 20
    assert load(file(tmp_path, DEVICES)).devices["gpu-0"].reserve == 0
    with pytest.raises(SettingsError, match=r"devices\.gpu-0: .*less than the device's 4194304"):
        load(file(tmp_path, "devices: {gpu-0: {simulated: 4Mi, reserve: 4Mi}}\n"))


def test_in_the_manifests_nothing_listens(tmp_path: Path) -> None:
    (config,) = (one for one in objects() if one["kind"] == "ConfigMap")
    assert load(file(tmp_path, config["data"]["driver.yaml"])).metrics is None
