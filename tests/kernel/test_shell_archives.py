"""Archives of the shell are everybody's: each is written here and read by another program, and the other way round.

`archives/` has what Info-ZIP's zip 3.0 and openpyxl have written.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell_guest import ShellGuest, shell_guest

ARCHIVES = Path(__file__).parent / "archives"
BINARY = bytes(range(256)) * 40
CONTENT = {
    "t.txt": b"hello\n",
    "d/b.bin": BINARY,
    "d/\u00fc b.txt": "\u00fc\n".encode(),
    "d/empty": b"",
    "n" * 120: b"long\n",
}


@pytest.fixture(scope="module")
def running() -> Iterator[ShellGuest]:
    with shell_guest() as guest:
        yield guest


@pytest.fixture
def guest(running: ShellGuest) -> ShellGuest:
    for path in running.workspace.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in CONTENT.items():
        (path := running.workspace / "case" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return running


def ok(guest: ShellGuest, code: str) -> str:
    found = guest.apart(code, cwd="/workspace/case")
    assert found.exit_code == 0, found
    return found.stdout


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_zip_is_read_by_python_and_by_info_zip(guest: ShellGuest) -> None:
    assert "adding: t.txt" in ok(guest, "zip -r ../made.zip *")
    made = guest.workspace / "made.zip"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()} == CONTENT
        assert {info.compress_type for info in archive.infolist() if info.filename == "d/b.bin"} == {
            zipfile.ZIP_DEFLATED
        }
    if unzip := shutil.which("unzip"):  # the files below are its zip's
        said = subprocess.run([unzip, "-t", made], capture_output=True, text=True, check=True).stdout
        assert "No errors detected" in said
    # A second time replaces, adds, and keeps the others.
    ok(guest, "echo changed > t.txt; echo new > new.txt; zip -q ../made.zip t.txt new.txt")
    with zipfile.ZipFile(made) as archive:
        assert (archive.read("t.txt"), archive.read("new.txt"), archive.read("d/b.bin")) == (
            b"changed\n",
            b"new\n",
            BINARY,
        )
        assert len(archive.namelist()) == len(set(archive.namelist()))


def test_an_archive_is_none_of_its_own_files(guest: ShellGuest) -> None:
    ok(
        guest,
        "zip -qm ./made.zip t.txt; echo new > new.txt; zip -qmr ./made.zip *; tar cf ./made.tar .; tar cf ./made.tar .",
    )
    folder = guest.workspace / "case"
    assert files_below(folder).keys() == {"made.zip", "made.tar"}
    with zipfile.ZipFile(folder / "made.zip") as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == {*CONTENT, "new.txt"}
    with tarfile.open(folder / "made.tar") as archive:
        assert [member.name for member in archive if member.isfile()] == ["./made.zip"]


def test_a_name_is_once_in_a_zip_archive(guest: ShellGuest) -> None:
    ok(guest, "mkdir e; echo other > e/empty; zip -q ./made.zip t.txt ./t.txt")
    found = guest.apart("zip -qjm made.zip d/empty e/empty", cwd="/workspace/case")
    assert (found.exit_code, found.stderr.count("empty")) == (16, 3)
    folder = guest.workspace / "case"
    assert ((folder / "d" / "empty").read_bytes(), (folder / "e" / "empty").read_bytes()) == (b"", b"other\n")
    with zipfile.ZipFile(folder / "made.zip") as archive:
        assert archive.namelist() == ["t.txt"]


def test_unzip_reads_those_of_python_of_info_zip_and_a_workbook(guest: ShellGuest) -> None:
    with zipfile.ZipFile(guest.workspace / "python.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in CONTENT.items():
            archive.writestr(name, content)
    ok(guest, "unzip -q ../python.zip -d ../out")
    assert files_below(guest.workspace / "out") == CONTENT

    for file in ARCHIVES.iterdir():
        shutil.copy(file, guest.workspace)
        ok(guest, f"unzip -q ../{file.name} -d ../{file.stem}")
        with zipfile.ZipFile(file) as archive:
            expected = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
        assert files_below(guest.workspace / file.stem) == expected
    assert "xl/workbook.xml\n" in ok(guest, "unzip -Z1 ../book.xlsx")
    assert 'name="Sales"' in ok(guest, "unzip -p ../book.xlsx xl/workbook.xml")
    assert "1 file\n" in ok(guest, "unzip -l ../book.xlsx xl/workbook.xml")


def test_what_is_hostile_or_damaged_is_refused(guest: ShellGuest) -> None:
    with zipfile.ZipFile(guest.workspace / "out.zip", "w") as archive:
        archive.writestr("../../../tmp/up.txt", "x")
        archive.writestr("/etc/absolute.txt", "x")
    ok(guest, "unzip -q ../out.zip -d ../safe")
    assert set(files_below(guest.workspace / "safe")) == {"tmp/up.txt", "etc/absolute.txt"}
    (guest.workspace / "broken.zip").write_bytes((ARCHIVES / "info-zip.zip").read_bytes()[:-40])
    found = guest.apart("unzip ../broken.zip")
    assert found.exit_code != 0
    assert "not a zip archive" in found.stderr or "cannot find" in found.stderr
    with tarfile.open(guest.workspace / "up.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../up.txt"), io.BytesIO())
    assert guest.apart("tar xf ../up.tar", cwd="/workspace/case").exit_code == 2
    assert not (guest.workspace / "up.txt").exists()


@pytest.mark.parametrize("flag", ["", "z", "j", "J"])
def test_tar_reads_and_writes_what_pythons_does(guest: ShellGuest, flag: str) -> None:
    ok(guest, f"tar c{flag}f ../made.tar *")
    with tarfile.open(guest.workspace / "made.tar") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert found == CONTENT
    kind = {"": "", "z": "gz", "j": "bz2", "J": "xz"}[flag]
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        with tarfile.open(guest.workspace / "python.tar", f"w:{kind}", format=form) as archive:
            archive.add(guest.workspace / "case", "top")
        ok(guest, f"mkdir ../out{number}; tar xf ../python.tar -C ../out{number} --strip-components=1")
        assert files_below(guest.workspace / f"out{number}") == CONTENT


def test_a_member_that_tar_cannot_make_is_named_and_the_others_are_made(guest: ShellGuest) -> None:
    linked = tarfile.TarInfo("linked")
    linked.type, linked.linkname = tarfile.LNKTYPE, "gone"
    names = [tarfile.TarInfo(name) for name in ("first", "d", "n" * 300, "t.txt/in")]
    with tarfile.open(guest.workspace / "odd.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for member in [linked, *names, tarfile.TarInfo("last")]:
            tar.addfile(member)
    found = guest.apart("tar xvf ../odd.tar; echo $?; ls -d first last", cwd="/workspace/case")
    listed = f"linked\nfirst\nd\n{'n' * 300}\nt.txt/in\nlast\n"
    assert (found.exit_code, found.stdout) == (0, f"{listed}2\nfirst\nlast\n")
    errors = found.stderr.splitlines()
    assert [line.split(":")[:2] for line in errors] == [
        ["tar", f" {name}"] for name in ("linked", "d", "n" * 300, "t.txt/in")
    ]


@pytest.mark.parametrize(("folder", "why"), [("gone", "No such file or directory"), ("t.txt", "Not a directory")])
def test_tar_makes_no_folder_to_go_to(guest: ShellGuest, folder: str, why: str) -> None:
    ok(guest, "tar cf ../made.tar d")
    found = guest.apart(f"tar xf ../made.tar -C {folder}", cwd="/workspace/case")
    assert (found.exit_code, found.stderr) == (2, f"tar: {folder}: Cannot open: {why}\n")
    assert files_below(guest.workspace / "case") == CONTENT


def test_a_member_whose_name_is_no_utf8_is_listed(guest: ShellGuest) -> None:
    with tarfile.open(guest.workspace / "odd.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("n\udcff"))
    assert ok(guest, "tar tf ../odd.tar") == "n?\n"


def test_tar_in_a_pipe_ends_no_script_with_set_e(guest: ShellGuest) -> None:
    assert ok(guest, "set -e; tar c d/empty | tar t; tar cf - d/empty > made.tar; echo $?") == "d/empty\n0\n"


def test_compressors_encoders_and_sums_are_those_of_others(guest: ShellGuest) -> None:
    case = guest.workspace / "case"
    ok(
        guest,
        "gzip -k d/b.bin; bzip2 -k d/b.bin; base64 d/b.bin > b64; xxd d/b.bin > xxd; cat d/b.bin | gzip > piped.gz",
    )
    assert gzip.decompress((case / "d/b.bin.gz").read_bytes()) == BINARY
    assert gzip.decompress((case / "piped.gz").read_bytes()) == BINARY
    assert bz2.decompress((case / "d/b.bin.bz2").read_bytes()) == BINARY
    for name, data in (("g.gz", gzip.compress(BINARY)), ("b.bz2", bz2.compress(BINARY))):
        (case / name).write_bytes(data)
    ok(guest, "gunzip g.gz && cmp g d/b.bin && bunzip2 b.bz2 && cmp b d/b.bin && base64 -d b64 | cmp - d/b.bin")
    for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512"):
        assert ok(guest, f"{name}sum d/b.bin").split()[0] == hashlib.new(name, BINARY).hexdigest()


def test_what_is_not_there_says_what_to_use(guest: ShellGuest) -> None:
    (guest.workspace / "case/a.xz").write_bytes(lzma.compress(b"x"))
    for command, advice in (
        ("xz -d a.xz", "tar -J"),
        ("zstd t.txt", "gzip"),
        ("7z a a.7z t.txt", "zip"),
        ("unrar x a.rar", "zip"),
    ):
        found = guest.apart(command, cwd="/workspace/case")
        assert found.exit_code == 127
        assert advice in found.stderr


def test_gunzip_unpacks_large_files_and_what_packs_well(guest: ShellGuest) -> None:
    case = guest.workspace / "case"
    large = b"1,2,3\n" * 2_000_000
    for name in ("a.csv.gz", "b.csv.gz"):
        (case / name).write_bytes(gzip.compress(large, 1))
    (case / "two.gz").write_bytes(gzip.compress(b"a") + gzip.compress(b"b"))
    ok(guest, "gunzip a.csv.gz two.gz; gzip -dk b.csv.gz")
    for name in ("a.csv", "b.csv"):
        assert (case / name).read_bytes() == large
    assert (case / "two").read_bytes() == b"ab"
    assert sorted(path.name for path in case.glob("*.gz")) == ["b.csv.gz"]
    found = guest.apart("gunzip b.csv.gz", cwd="/workspace/case")
    assert found.exit_code == 1
    assert "b.csv.gz: already exists without .gz: -f replaces it" in found.stderr
    (case / "cut.gz").write_bytes(gzip.compress(BINARY)[:-9])
    (case / "none.gz").write_bytes(b"none")
    found = guest.apart("gunzip -f cut.gz none.gz missing.gz b.csv.gz", cwd="/workspace/case")
    assert found.exit_code == 1
    assert [line.rpartition("gzip: ")[2].partition(":")[0] for line in found.stderr.splitlines()] == [
        "cut.gz",
        "none.gz",
        "missing.gz",
    ]
    assert [path.name for path in (case / "cut", case / "none") if path.exists()] == []
    assert not (case / "b.csv.gz").exists()


def test_gunzip_of_what_is_damaged_costs_no_file_that_is_there(guest: ShellGuest) -> None:
    case = guest.workspace / "case"
    damaged = bytearray(gzip.compress(BINARY))
    damaged[-8] ^= 1
    packed = {"page.gz": b"<html>404</html>", "damaged.gz": bytes(damaged)}
    for name, content in packed.items():
        (case / name).write_bytes(content)
        (case / name.removesuffix(".gz")).write_bytes(b"good")
    assert guest.apart(f"gunzip -f {' '.join(packed)}", cwd="/workspace/case").exit_code == 1
    for name, content in packed.items():
        assert (case / name).read_bytes() == content
        assert (case / name.removesuffix(".gz")).read_bytes() == b"good"


def test_gunzip_of_an_empty_file_keeps_it(guest: ShellGuest) -> None:
    case = guest.workspace / "case"
    (case / "none.gz").write_bytes(b"")
    (case / "nothing.gz").write_bytes(gzip.compress(b""))
    found = guest.apart("gunzip none.gz nothing.gz", cwd="/workspace/case")
    assert (found.exit_code, "none.gz" in found.stderr, "unexpected end of file" in found.stderr) == (1, True, True)
    assert [path.name for path in sorted(case.glob("no*"))] == ["none.gz", "nothing"]
