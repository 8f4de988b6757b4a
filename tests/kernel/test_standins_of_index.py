"""Stand-ins for packages that no source has for the guest, what packages do without, and what is refused as useless.

The values of ormsgpack and uuid-utils were compared with those of ormsgpack 1.13.1 and uuid-utils 0.19.0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelmcp_kernel.packages import package_errors as e
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.outcome import Outcome
from kernelmcp_kernel.packages.standins.known_packages import DISPENSABLE
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.settings import PackageSettings

from .wheels import DEAD_INDEX, Index, make_wheel, serve_index


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


def test_what_cannot_even_be_imported_without_its_need_is_refused(
    index: Index, settings: PackageSettings, tmp_path: Path
) -> None:
    make_wheel(index.folder("google-auth"), "google_auth", requires=("cryptography>=38",))
    with pytest.raises(e.PackageUnreachable, match=r"google-auth: cryptography \(which it needs\) comes from"):
        install(settings, tmp_path / "home", "google-auth")


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
