"""Stand-ins for packages that no source has for the guest, what packages do without, and what is refused as useless.

The values of ormsgpack and uuid-utils were compared with those of ormsgpack 1.13.1 and uuid-utils 0.19.0.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.packages import errors as e
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Outcome
from kernelmcp_kernel.packages.standins import ormsgpack, uuid_utils
from kernelmcp_kernel.packages.standins.uuid_utils import compat
from kernelmcp_kernel.packages.standins.without import DISPENSABLE
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings

from .wheels import DEAD_INDEX, Index, make_wheel, serve_index

UTC = datetime.UTC
AT = datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC)


@dataclasses.dataclass
class Point:
    x: int = 1
    _hidden: int = 2
    y: str = "é"


class Kind(enum.Enum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Row(tuple[int, ...]):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "option", "data"),
    [
        ([None, True, False, 0, 127, 128, -1, -32, -33], 0, b"\x99\xc0\xc3\xc2\x00\x7f\xcc\x80\xff\xe0\xd0\xdf"),
        ([65535, 65536, 2**32], 0, b"\x93\xcd\xff\xff\xce\x00\x01\x00\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
        ([-129, -32769], 0, b"\x92\xd1\xff\x7f\xd2\xff\xff\x7f\xff"),
        ([2**64 - 1, -(2**63)], 0, b"\x92\xcf" + b"\xff" * 8 + b"\xd3\x80" + b"\x00" * 7),
        ((1.5, "é", b"x", bytearray(b"y")), 0, b"\x94\xcb?\xf8\x00\x00\x00\x00\x00\x00\xa2\xc3\xa9\xc4\x01x\xc4\x01y"),
        ("a" * 32, 0, b"\xd9 " + b"a" * 32),
        ("\ud800x", ormsgpack.OPT_REPLACE_SURROGATES, b"\xa2?x"),
        ({"b": 1, "a": 2}, ormsgpack.OPT_SORT_KEYS, b"\x82\xa1a\x02\xa1b\x01"),
        ({1: 2, None: 3, (1, 2): 4}, ormsgpack.OPT_NON_STR_KEYS, b"\x83\x01\x02\xc0\x03\x92\x01\x02\x04"),
        ([Point(), Kind.ONE, Text("s")], 0, b"\x93\x82\xa1x\x01\xa1y\xa2\xc3\xa9\x01\xa1s"),
        ([ormsgpack.Ext(5, b"abcd"), ormsgpack.Ext(5, b"abc")], 0, b"\x92\xd6\x05abcd\xc7\x03\x05abc"),
        (ormsgpack.Fragment(b"\x01"), 0, b"\x01"),
        (uuid.UUID(int=7), 0, b"\xd9$00000000-0000-0000-0000-000000000007"),
        (AT, ormsgpack.OPT_UTC_Z, b"\xbb2020-01-02T03:04:05.000006Z"),
        (AT.replace(tzinfo=None), ormsgpack.OPT_NAIVE_UTC | 4, b"\xb92020-01-02T03:04:05+00:00"),
        (AT, ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT, b"\xd7\xff\x00\x00]\xc0^\r]\xa5"),
        (
            AT.replace(year=1960),
            ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT,
            b"\xc7\x0c\xff\x00\x00\x17p\xff\xff\xff\xff\xed1\x85%",
        ),
    ],
)
def test_ormsgpack_writes(value: Any, option: int, data: bytes) -> None:
    assert ormsgpack.packb(value, option=option) == data


@pytest.mark.parametrize(
    "value",
    [
        {1},
        Row((1,)),
        object(),
        2**64,
        "\ud800",
        {1: 2},
        {Kind.ONE: 1},
        ormsgpack.Ext(-1, b"a"),
        ormsgpack.Ext(128, b""),
    ],
)
def test_ormsgpack_refuses_to_write(value: Any) -> None:
    with pytest.raises(ormsgpack.MsgpackEncodeError):
        ormsgpack.packb([value])


def test_ormsgpack_asks_for_what_it_does_not_know() -> None:
    assert ormsgpack.packb([{1}, Row((1,))], default=list) == b"\x92\x91\x01\x91\x01"
    assert ormsgpack.packb(2**64, default=str, option=ormsgpack.OPT_PASSTHROUGH_BIG_INT)[1:] == str(2**64).encode()
    with pytest.raises(TypeError, match="Recursion limit for default"):
        ormsgpack.packb(object(), default=lambda value: value)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TypeError, match="Recursion limit"):
        ormsgpack.packb(deep)


def test_ormsgpack_reads_what_it_wrote() -> None:
    value = {"a": [1, -1, 2**40, 1.5, None, True, "é" * 300, b"x" * 70_000], "b": {}}
    assert ormsgpack.unpackb(memoryview(ormsgpack.packb(value))) == value
    keys = {1: "a", (1, 2): "b", b"x": "c"}
    packed = ormsgpack.packb(keys, option=ormsgpack.OPT_NON_STR_KEYS)
    assert ormsgpack.unpackb(packed, option=ormsgpack.OPT_NON_STR_KEYS) == keys
    stamp = ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT
    for moment in (AT, AT.replace(year=1960), AT.replace(year=2900), AT.replace(microsecond=0)):
        assert ormsgpack.unpackb(ormsgpack.packb(moment, option=stamp), option=stamp) == moment
    assert ormsgpack.unpackb(b"\xc7\x03\x05abc", ext_hook=lambda tag, data: (tag, data)) == (5, b"abc")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x81\x01\x02",
        b"\xa1\xff",
        b"\xd6\x05abcd",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 2000,
        "x",
    ],
)
def test_ormsgpack_refuses_to_read(data: Any) -> None:
    with pytest.raises(ormsgpack.MsgpackDecodeError):
        ormsgpack.unpackb(data)


def test_uuid_utils() -> None:
    assert str(uuid_utils.uuid7(1700000000, 123456789)).startswith("018bcfe5-687b-7")
    assert re.fullmatch(r"1ee833b0-4afc-6000-[89ab]...-000000000005", str(uuid_utils.uuid6(5, 1700000000, 7)))
    assert str(uuid_utils.uuid8(b"a" * 16)) == "61616161-6161-8161-a161-616161616161"
    assert str(uuid_utils.uuid5(uuid_utils.NAMESPACE_DNS, b"a")) == "4f3f2898-69e3-5a0d-820a-c4e87987dbce"
    for make, version in ((uuid_utils.uuid6, 6), (uuid_utils.uuid7, 7)):
        made = [make() for _ in range(1000)]
        assert made == sorted(set(made))
        assert {(each.version, each.variant) for each in made} == {(version, uuid_utils.RFC_4122)}
        assert abs(made[0].timestamp - datetime.datetime.now(UTC).timestamp() * 1000) < 600_000
    assert abs(uuid_utils.uuid1().timestamp - uuid_utils.uuid7().timestamp) < 600_000
    with pytest.raises(ValueError, match="v1, v6 or v7"):
        _ = uuid_utils.uuid4().timestamp
    with pytest.raises(ValueError, match="16"):
        uuid_utils.uuid8(b"a")
    assert {type(make()) for make in (compat.uuid1, compat.uuid4, compat.uuid6, compat.uuid7)} == {uuid.UUID}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serve_index(tmp_path / "index") as index:
        yield index


@pytest.fixture
def settings(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSettings:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "pyodide").mkdir(exist_ok=True)
    return PackageSettings(index_url=index.url, pyodide_url=str(tmp_path / "pyodide"), build_from_source=False)


def install(settings: PackageSettings, home: Path, *names: str) -> Outcome:
    return asyncio.run(Installer(settings, Store(home / "packages")).install(list(names), lambda _: None))


def titles(outcome: Outcome) -> list[str]:
    return sorted(package.title for package in outcome.installed)


def test_one_is_taken_where_no_wheel_will_do(index: Index, settings: PackageSettings, tmp_path: Path) -> None:
    index.add("old", requires=("uuid-utils>=0.12,<1", "ormsgpack>=1.12"))
    index.add("new", requires=("uuid-utils>=0.12",))
    make_wheel(index.folder("uuid-utils"), "uuid_utils", "1.2.0")
    index.add("ormsgpack", "1.14.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    outcome = install(settings, tmp_path / "home", "old")
    assert titles(outcome) == ["old 1.0", "ormsgpack 1.13.1+pure", "uuid-utils 0.19.0+pure"]
    assert "uuid-utils 0.19.0+pure stands in for the compiled package" in outcome.notes
    for name in ("ormsgpack", "uuid_utils"):  # of the very version of the stand-in
        make_wheel(tmp_path / "own", name, {"ormsgpack": "1.13.1", "uuid_utils": "0.19.0"}[name])
    own = replace(settings, wheel_folders=[str(tmp_path / "own")])
    assert titles(install(own, tmp_path / "built", "old")) == ["old 1.0", "ormsgpack 1.13.1", "uuid-utils 0.19.0"]
    assert titles(install(settings, tmp_path / "another", "new")) == ["new 1.0", "uuid-utils 1.2.0"]


def test_what_a_package_can_do_without_is_left_out_where_it_cannot_be_had(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    index.add("pyjwt", metadata='Provides-Extra: crypto\nRequires-Dist: cryptography>=3; extra == "crypto"\n')
    index.add("server", requires=("pyjwt[crypto]>=1",))
    index.add("vault", requires=("cryptography>=3",))
    home = tmp_path / "home"
    outcome = install(settings, home, "server")
    assert titles(outcome) == ["pyjwt 1.0", "server 1.0"]
    assert outcome.notes == (f"pyjwt is without cryptography here: {DISPENSABLE['pyjwt']['cryptography']}",)
    assert install(settings, home, "pyjwt").notes == (), "nobody asked for it"
    for asked in ("vault", "cryptography", "server", "vault"):  # who is not in the table needs it, beside who is
        if asked != "server":
            with pytest.raises(e.PackageError, match="cryptography"):
                install(settings, home, "server", asked)
    index.add("cryptography", "47.0")  # nothing of it was remembered
    assert titles(install(settings, home, "server")) == ["cryptography 47.0", "pyjwt 1.0", "server 1.0"]


def test_a_session_that_did_without_comes_back_as_it_was(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    index.add("langsmith", requires=("zstandard>=0.23",))
    store = Store(tmp_path / "home" / "packages")
    asyncio.run(Installer(settings, store).install(["langsmith"], lambda _: None))
    shutil.rmtree(index.folder("langsmith"))
    again = asyncio.run(Installer(settings, store).install(["langsmith==1.0"], lambda _: None))
    assert titles(again) == ["langsmith 1.0"]


def test_what_is_of_no_use_here_is_refused_when_it_is_asked_for(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    index.add("gitpython")
    index.add("tracker", requires=("gitpython",))
    with pytest.raises(e.PackageNotSupported, match="gitpython: it runs the program git"):
        install(settings, tmp_path / "home", "GitPython>=1")
    assert titles(install(settings, tmp_path / "home", "tracker")) == ["gitpython 1.0", "tracker 1.0"]


def test_of_a_package_that_somebody_chose_a_version_that_it_is_not_is_refused_with_those_that_there_are(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    index.add("movie", requires=("pillow<12",))
    index.add("pillow", "11.0", tag="cp314-cp314-manylinux_2_28_x86_64")
    with pytest.raises(e.PackageNotFound, match=r"movie: pillow<12 .*: there is no such version .* are: 12\.2\.0"):
        install(settings, tmp_path / "home", "movie")


@pytest.fixture
def distribution(tmp_path: Path) -> None:
    """A folder of two packages. By their own metadata they do not fit, and one needs a third; by the list they fit."""
    folder = tmp_path / "pyodide"
    folder.mkdir(exist_ok=True)
    wheels = {
        "solver": (make_wheel(folder, "solver", requires=("digits<1.4", "zones")), ["digits"]),
        "digits": (make_wheel(folder, "digits", "1.4"), []),
    }
    entries = {
        name: {
            "name": name,
            "file_name": wheel.name,
            "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "imports": [name],
            "depends": depends,
        }
        for name, (wheel, depends) in wheels.items()
    }
    (folder / "pyodide-lock.json").write_text(json.dumps({"packages": entries}))


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize("by_import", [False, True])
def test_files_of_the_distribution_are_enough_for_each_other_where_no_index_answers(
    settings: PackageSettings, tmp_path: Path, *, by_import: bool
) -> None:
    installer = Installer(replace(settings, index_url=DEAD_INDEX), Store(tmp_path / "home" / "packages"))
    asked = installer.install_for("solver", print) if by_import else installer.install(["solver"], print)
    outcome = asyncio.run(asked)
    assert outcome is not None
    assert titles(outcome) == ["digits 1.4", "solver 1.0"]
    assert [note.partition(" here")[0].partition(" in ")[0] for note in outcome.notes] == [
        "solver goes with digits",
        "solver is without zones",
    ]


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize("by_import", [False, True])
def test_where_an_index_answers_they_have_what_they_say_that_they_need(
    index: Index, settings: PackageSettings, tmp_path: Path, *, by_import: bool
) -> None:
    index.add("digits", "1.3")
    index.add("zones")
    if by_import:  # which takes it from nobody but the distribution
        index.add("solver")
    installer = Installer(settings, Store(tmp_path / "home" / "packages"))
    asked = installer.install_for("solver", print) if by_import else installer.install(["solver"], print)
    outcome = asyncio.run(asked)
    assert outcome is not None
    assert titles(outcome) == ["digits 1.3", "solver 1.0", "zones 1.0"]
    assert outcome.notes == ()
    if by_import:
        assert {each.wheel.source for each in outcome.installed if each.wheel.name == "solver"} == {"pyodide"}


@pytest.mark.usefixtures("distribution")
def test_no_index_takes_the_place_of_what_the_distribution_has(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    index.add("digits", "9.0")  # newer, and a stranger's
    index.add("zones")
    for place in ("import", "name"):
        installer = Installer(settings, Store(tmp_path / place / "packages"))
        asked = installer.install_for("solver", print) if place == "import" else installer.install(["solver"], print)
        outcome = asyncio.run(asked)
        assert outcome is not None
        assert titles(outcome) == ["digits 1.4", "solver 1.0", "zones 1.0"]


def test_only_the_distributions_own_file_is_trusted_and_not_for_what_an_extra_needs(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    folder = tmp_path / "pyodide"
    extra = 'Provides-Extra: excel\nRequires-Dist: openxl; extra == "excel"\n'
    wheel = make_wheel(folder, "frame", metadata=extra)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = {"name": "frame", "file_name": wheel.name, "sha256": digest, "imports": ["frame"]}
    (folder / "pyodide-lock.json").write_text(json.dumps({"packages": {"frame": entry}}))
    with pytest.raises(e.PackageError, match="openxl"):
        install(settings, tmp_path / "home", "frame[excel]")
    own = tmp_path / "own"
    make_wheel(own, "frame", requires=("mustneed",))
    (folder / wheel.name).unlink()
    with pytest.raises(e.PackageError, match="mustneed"):
        install(replace(settings, wheel_folders=[str(own)]), tmp_path / "other", "frame")


def test_what_strangers_write_is_no_note(index: Index, settings: PackageSettings, tmp_path: Path) -> None:
    index.add("evil", metadata="Summary: x\n")
    words = "kernelmcp-without pyjwt cryptography"
    page = f'<a href="evil-1.0-py3-none-any.whl" data-yanked="bad&#10;{words}&#10;">evil-1.0-py3-none-any.whl</a>'
    (index.folder("evil") / "index.html").write_text(page)
    assert install(settings, tmp_path / "home", "evil==1.0").notes == ()


def test_what_was_tried_and_given_up_is_no_note(index: Index, settings: PackageSettings, tmp_path: Path) -> None:
    index.add("app", "1.0")
    index.add("app", "2.0", requires=("langsmith",))
    index.add("langsmith", requires=("zstandard>=0.23", "beta<1"))
    index.add("beta")
    index.add("other", requires=("beta>=1",))
    outcome = install(settings, tmp_path / "home", "app", "other")
    assert titles(outcome) == ["app 1.0", "beta 1.0", "other 1.0"]
    assert outcome.notes == ()
