"""Files of npm packages: only those that are named, and only of the archive that the lock names."""

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from kernelmcp_kernel.runtime import npm
from kernelmcp_kernel.runtime.build_identity import BuildError


def archive(**files: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return target.getvalue()


def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, locked: bytes) -> Path:
    """node_modules, from a registry that has `data` where the lock has `locked`."""

    def run_npm(where: Path, *command: str) -> None:
        assert command == ("pack", "one@1.0.0")
        (where / "one-1.0.0.tgz").write_bytes(data)

    monkeypatch.setattr(npm, "_run_npm", run_npm)
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(locked).digest()).decode()}"
    (folder / "lock.json").write_text(
        json.dumps({"one": {"version": "1.0.0", "integrity": integrity, "files": ["LICENSE", "build/*.js"]}})
    )
    return npm.npm_files(folder / "made", folder / "lock.json")


def test_the_named_files_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("package/LICENSE", "package/build/a.js", "package/build/a.js.map", "package/index.js", "package/build")
    data = archive(**{name: name.encode() for name in names})
    modules = fetched(tmp_path, monkeypatch, data, data)
    found = sorted(str(file.relative_to(modules)) for file in modules.rglob("*") if file.is_file())
    assert found == ["one/LICENSE", "one/build/a.js"]
    assert (modules / "one" / "build" / "a.js").read_bytes() == b"package/build/a.js"


def test_another_archive_than_the_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive(**{"package/build/a.js": b"evil"})
    with pytest.raises(BuildError, match=r"one-1\.0\.0\.tgz is not the file that lock.json names"):
        fetched(tmp_path, monkeypatch, data, archive(**{"package/build/a.js": b"good"}))
    assert not (tmp_path / "made" / "node_modules").exists()


def test_a_file_outside_of_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive(**{"package/build/../../../evil.js": b"evil"})
    with pytest.raises(BuildError, match="outside of it"):
        fetched(tmp_path, monkeypatch, data, data)
    assert not list(tmp_path.rglob("evil.js"))
