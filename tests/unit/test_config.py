"""The YAML of a local run: strict, and every fault told at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.fields import quantity
from tandem.config import ConfigError, load

Faults = Callable[[str], tuple[str, ...]]

GOOD = """
job: grpo
devices: {gpu0: 384Mi}
weights: 128Mi
tenants:
  rollout:
    engine: vllm
    listen: 8000
    engine_port: 8100
    devices: [gpu0]
    need: 300Mi
    residual: 24Mi
    command: [python, -m, vllm]
    env: {OMP_NUM_THREADS: "1"}
    restart: always
  trainer: {devices: [gpu0], need: 300Mi, residual: 8Mi, command: [python, t.py], restart: never}
"""


@pytest.fixture
def faults_of(tmp_path: Path) -> Faults:
    def faults(text: str) -> tuple[str, ...]:
        path = tmp_path / "local.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value).splitlines() == [f"{path}: {one}" for one in caught.value.faults]
        return caught.value.faults

    return faults


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "local.yaml"
    path.write_text(GOOD)
    config = load(path)
    assert config.devices == {"gpu0": 384 << 20}
    assert config.tenants["rollout"].need == 300 << 20
    assert config.tenants["rollout"].env == {"OMP_NUM_THREADS": "1"}
    assert config.tenants["trainer"].engine is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("384Mi", 384 << 20), ("1.5Gi", 3 << 29), ("2G", 2 * 10**9), ("0", 0), (4096, 4096)],
)
def test_sizes_are_kubernetes_quantities(text: object, size: int) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize("text", ["", "Mi", "-1Mi", "1 Mi", "1mi", "100m", "0.3", 1.5, True, None])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        quantity(text)


def test_every_fault_is_reported_together(faults_of: Faults) -> None:
    text = GOOD.replace("weights: 128Mi\n", "wheights: 1\n").replace("8000", "80000")
    text = text.replace("need: 300Mi\n", "need: much\n").replace('"1"', "1")
    text = text.replace("restart: always", "restart: sometimes").replace("job: grpo", "job: GRPO")
    assert faults_of(text) == (
        "job: must be a name of lower-case letters, digits and inner hyphens",
        "weights: is missing",
        "tenants.rollout.listen: Input should be less than or equal to 65535",
        "tenants.rollout.need: must be a size such as 384Mi, got 'much'",
        "tenants.rollout.env.OMP_NUM_THREADS: must be a string (put numbers in quotes)",
        "tenants.rollout.restart: Input should be 'always' or 'never'",
        "wheights: unknown key",
    )


def test_contradictions_are_reported_together(faults_of: Faults) -> None:
    text = GOOD.replace("devices: [gpu0], need: 300Mi", "devices: [gpu9], need: 4Mi")
    text = text.replace("engine_port: 8100", "engine_port: 8000").replace("384Mi", "299Mi")
    assert faults_of(text) == (
        "tenants.rollout.engine_port: port 8000 is taken by tenants.rollout.listen",
        (
            f"tenants.rollout.need: {300 << 20} bytes beside the others' residuals of 0 do not fit"
            f" gpu0 ({299 << 20} bytes)"
        ),
        "tenants.trainer.devices: gpu9 not in devices",
        f"tenants.trainer.residual: must be less than need ({4 << 20} bytes)",
    )


def test_an_engine_needs_its_ports_and_others_have_none(faults_of: Faults) -> None:
    others = "trainer: {listen: 9000, engine_weights: 1Mi, "
    text = GOOD.replace("    listen: 8000\n", "").replace("trainer: {", others)
    assert faults_of(text) == (
        "tenants.rollout.listen: is missing (an engine needs it)",
        "tenants.trainer.listen: only for a tenant with an engine",
        "tenants.trainer.engine_weights: only for a tenant with an engine",
    )


def test_a_run_that_would_not_end(faults_of: Faults) -> None:
    assert faults_of(GOOD.replace("restart: never", "restart: always")) == (
        "tenants: at least one needs `restart: never`, or the run would not end",
    )


def test_a_key_that_stands_twice(faults_of: Faults) -> None:
    (fault,) = faults_of(GOOD + "job: other\n")
    assert fault.startswith("is not YAML: key 'job' stands twice")


def test_no_file_no_mapping_no_yaml(tmp_path: Path, faults_of: Faults) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "absent.yaml")
    assert faults_of("[1]") == ("must be a mapping with job, devices, weights and tenants",)
    assert faults_of("a: [")[0].startswith("is not YAML: ")
