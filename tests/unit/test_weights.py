"""Publishing and checking weights; the reader's half takes the directory for untrusted input."""

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from workload_agents import weights
from workload_agents.errors import WeightsError
from workload_agents.weights import Published, latest, publish, verified


def files(**contents: bytes) -> Callable[[Path], None]:
    """A `write` that leaves NAME.safetensors for each name."""

    def write(folder: Path) -> None:
        for name, content in contents.items():
            (folder / f"{name}.safetensors").write_bytes(content)

    return write


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    return publish(tmp_path, 1, files(model=b"one" * 1000, more=b"")).path


def rewrite(folder: Path, manifest: object) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_what_is_published_is_verified(tmp_path: Path) -> None:
    published = publish(tmp_path, 3, files(model=b"abc", more=bytes(3 << 20)))
    assert published == Published(3, tmp_path / "v3")
    assert latest(tmp_path) == 3
    assert verified(tmp_path, 3) == published
    assert (tmp_path / "latest").readlink() == Path("v3")
    assert json.loads((published.path / "manifest.json").read_text()) == {
        "version": 3,
        "files": {
            "model.safetensors": {"bytes": 3, "crc32": zlib.crc32(b"abc")},
            "more.safetensors": {"bytes": 3 << 20, "crc32": zlib.crc32(bytes(3 << 20))},
        },
    }


def test_another_user_can_read_what_safetensors_made_private(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        folder.chmod(0o700)
        (folder / "model.safetensors").touch(mode=0o600)

    path = publish(tmp_path, 1, write).path
    assert (path.stat().st_mode & 0o777, (path / "model.safetensors").stat().st_mode & 0o777) == (
        0o755,
        0o644,
    )


def test_nothing_is_published_at_first(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "absent") is None


def test_latest_opens_no_file(tmp_path: Path, v1: Path) -> None:
    for path in v1.iterdir():
        path.unlink()
    v1.rmdir()
    assert latest(tmp_path) == 1


class TestTornWrites:
    def test_a_reader_during_the_write_sees_the_version_before(
        self, tmp_path: Path, v1: Path
    ) -> None:
        def write(folder: Path) -> None:
            (folder / "model.safetensors").write_bytes(b"half")
            assert latest(tmp_path) == 1
            assert verified(tmp_path, 1).path == v1
            with pytest.raises(WeightsError, match=r"version 2 .* No such file"):
                verified(tmp_path, 2)

        publish(tmp_path, 2, write)
        assert latest(tmp_path) == 2

    def test_a_write_that_fails_leaves_nothing(self, tmp_path: Path, v1: Path) -> None:
        def write(folder: Path) -> None:
            (folder / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            publish(tmp_path, 2, write)
        assert sorted(tmp_path.iterdir()) == [tmp_path / "latest", v1]
        assert latest(tmp_path) == 1

    @pytest.mark.parametrize("step", ["_write_manifest", "_point_latest"])
    def test_a_writer_that_died_is_no_obstacle(
        self, tmp_path: Path, v1: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SIGKILL before a step: os._exit in a child, so that no clean-up of ours runs."""
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(weights, step, lambda *_: os._exit(9))
            publish(tmp_path, 2, files(model=b"never whole"))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert latest(tmp_path) == 1
        assert verified(tmp_path, 1).path == v1
        publish(tmp_path, 2, files(other=b"whole"))
        assert verified(tmp_path, 2).version == 2
        assert not (tmp_path / "v2" / "model.safetensors").exists()


class TestPublish:
    @pytest.mark.parametrize("version", [1, 5])
    def test_versions_only_grow(self, tmp_path: Path, version: int) -> None:
        publish(tmp_path, 5, files(model=b"five"))
        with pytest.raises(WeightsError, match=f"version {version} cannot .* is at version 5"):
            publish(tmp_path, version, files(model=b"old"))
        assert verified(tmp_path, 5).version == 5

    @pytest.mark.parametrize("version", [0, -1])
    def test_versions_count_from_one(self, tmp_path: Path, version: int) -> None:
        with pytest.raises(WeightsError, match="count from 1"):
            publish(tmp_path, version, files(model=b"x"))

    def test_the_last_two_stay(self, tmp_path: Path) -> None:
        for version in (1, 2, 9, 10, 11):
            publish(tmp_path, version, files(model=b"%d" % version))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "v10", "v11"]
        assert verified(tmp_path, 10).version == 10

    def test_something_to_load_is_needed(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="no file was written"):
            publish(tmp_path, 1, files())
        assert list(tmp_path.iterdir()) == []

    def test_only_plain_safetensors_are_published(self, tmp_path: Path) -> None:
        def pickle(folder: Path) -> None:
            (folder / "model.bin").write_bytes(b"")

        def link(folder: Path) -> None:
            (folder / "model.safetensors").symlink_to("/etc/passwd")

        def nested(folder: Path) -> None:
            (folder / "model.safetensors").mkdir()

        for write in (pickle, link, nested):
            with pytest.raises(WeightsError, match="is not a plain"):
                publish(tmp_path, 1, write)
        assert list(tmp_path.iterdir()) == []


class TestUntrustedDirectory:
    def refused(self, folder: Path, why: str) -> None:
        with pytest.raises(WeightsError, match=why) as error:
            verified(folder.parent, int(folder.name[1:]))
        assert "\n" not in str(error.value)

    def test_one_bit_is_noticed(self, v1: Path) -> None:
        content = bytearray((v1 / "model.safetensors").read_bytes())
        content[1234] ^= 1
        (v1 / "model.safetensors").write_bytes(content)
        self.refused(v1, "model.safetensors has crc32 0x")

    def test_a_file_that_was_cut_or_grew(self, v1: Path) -> None:
        with (v1 / "model.safetensors").open("ab") as file:
            file.truncate(2999)
            self.refused(v1, "has 2999 bytes, not 3000")
            file.truncate(3001)
            self.refused(v1, "has 3001 bytes, not 3000")

    def test_a_missing_file(self, v1: Path) -> None:
        (v1 / "more.safetensors").unlink()
        self.refused(v1, "more.safetensors is missing")

    @pytest.mark.parametrize("name", ["extra.safetensors", "model.bin", "config.json", "sub"])
    def test_an_extra_file(self, v1: Path, name: str) -> None:
        (v1 / name).mkdir() if name == "sub" else (v1 / name).touch()
        self.refused(v1, f"'{name}' is not in the manifest")

    def test_the_version_that_is_asked_for_and_no_other(self, tmp_path: Path, v1: Path) -> None:
        v1.rename(tmp_path / "v2")
        self.refused(tmp_path / "v2", "manifest.json is of version 1;")
        self.refused(v1, "No such file")

    @pytest.mark.parametrize(
        "name",
        [
            "../model.safetensors",
            "/etc/passwd",
            "a/b.safetensors",
            ".hidden.safetensors",
            "model.bin",
            "a\nb.safetensors",
            "é.safetensors",
            "x" * 300 + ".safetensors",
            "",
        ],
    )
    def test_a_name_that_is_not_plain(self, v1: Path, name: str) -> None:
        rewrite(v1, {"version": 1, "files": {name: {"bytes": 0, "crc32": 0}}})
        self.refused(v1, "is not a plain")

    @pytest.mark.parametrize(
        "manifest",
        [
            [],
            {},
            {"version": 1, "files": {}},
            {"version": 1, "files": []},
            {"version": "1", "files": {"model.safetensors": {"bytes": 0, "crc32": 0}}},
            {"version": 1, "files": {"model.safetensors": {"bytes": 0, "crc32": 0}}, "more": 1},
        ],
    )
    def test_a_manifest_of_another_shape(self, v1: Path, manifest: object) -> None:
        rewrite(v1, manifest)
        self.refused(v1, "does not hold a version and its files")

    @pytest.mark.parametrize(
        "entry",
        [None, 3, {}, {"bytes": 3000}, {"bytes": -1, "crc32": 0}, {"bytes": 1.5, "crc32": 0}],
    )
    def test_an_entry_of_another_shape(self, v1: Path, entry: object) -> None:
        rewrite(v1, {"version": 1, "files": {"model.safetensors": entry}})
        self.refused(v1, "does not give model.safetensors its bytes")

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000], ids=range(5)
    )
    def test_a_manifest_that_is_not_json(self, v1: Path, content: bytes) -> None:
        (v1 / "manifest.json").write_bytes(content)
        self.refused(v1, "is not JSON")

    def test_a_manifest_without_end(self, v1: Path) -> None:
        (v1 / "manifest.json").write_bytes(b" " * ((1 << 20) + 1))
        self.refused(v1, "is larger than")

    def test_no_manifest(self, v1: Path) -> None:
        (v1 / "manifest.json").unlink()
        self.refused(v1, "manifest.json cannot be opened: No such file")

    @pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
    def test_a_link_in_place_of_a_file(self, tmp_path: Path, v1: Path, name: str) -> None:
        (v1 / name).rename(tmp_path / "elsewhere")
        (v1 / name).symlink_to(tmp_path / "elsewhere")
        self.refused(v1, f"{name} cannot be opened: Too many levels of symbolic links")

    @pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
    def test_a_fifo_in_place_of_a_file_keeps_nobody_waiting(self, v1: Path, name: str) -> None:
        (v1 / name).unlink()
        os.mkfifo(v1 / name)
        self.refused(v1, f"{name} is not a regular file")

    def test_a_link_in_place_of_the_version(self, tmp_path: Path, v1: Path) -> None:
        v1.rename(tmp_path / "elsewhere")
        v1.symlink_to(tmp_path / "elsewhere")
        self.refused(v1, "cannot be read: Not a directory")

    @pytest.mark.parametrize("target", ["../v1", "/v1", "v01", "v0", "v-1", "v1x", "v" + "9" * 40])
    def test_a_latest_that_names_no_version(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "latest").symlink_to(target)
        with pytest.raises(WeightsError, match="names no version"):
            latest(tmp_path)

    def test_a_latest_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "latest").write_text("v1")
        with pytest.raises(WeightsError, match="latest cannot be read: Invalid argument"):
            latest(tmp_path)
