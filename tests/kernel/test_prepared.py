"""Packages that are prepared: bytecode, an image in which some are imported, imports that need no pip."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kernelmcp_kernel.prepare.__main__ import UNPREPARED
from kernelmcp_kernel.runtime.build_identity import build_id
from kernelmcp_kernel.runtime.places import PACKAGE, RUNTIME
from tests.prepared_home import prepared_home
from tests.pyodide_packages import pyodide_folder

from .conftest import run_prepare, running_kernel
from .driver import DEADLINE, Kernel, wait_until
from .wheels import Index, serve_index

PLOT = """import pandas as pd
df = pd.DataFrame({"a": [1, 4, 9]})
df.plot();
"""
# In the background, with a low priority, while other tests have the processors.
PREPARE_SECONDS = 300.0
MODULES = "import sys; sorted({'numpy', 'pandas', 'matplotlib', 'seaborn', 'PIL'} & set(sys.modules))"


def prepare(home: Path, packages: dict[str, object], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_prepare(*arguments, KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=json.dumps(packages))


def _fill(index: Index) -> None:
    index.add("pure", requires=("helper",), files={"pure_data.txt": "as it came"})
    index.add("helper")
    # This one does not even load.
    index.add("withso", files={"withso/__init__.py": "from withso import fast", "withso/fast.so": b"\0asm"})
    index.add("raises", files={"raises/__init__.py": "raise SystemExit('at import')"})
    index.add("opens", files={"opens/__init__.py": "file = open(__file__)"})
    index.add("writes", files={"writes/__init__.py": "open('/lib/kernelmcp/micropip.py', 'a').write('#')"})


# -- with packages of a test's own


@pytest.mark.slow
def test_preinstalled_packages_are_imported_in_the_image_once_it_is_there(tmp_path: Path) -> None:
    guest_code = PACKAGE / "inside" / "micropip.py"
    before = guest_code.read_bytes()
    wanted = ["pure", "withso", "raises", "writes"]
    home = tmp_path / "home"
    with serve_index(tmp_path / "index") as index:
        _fill(index)
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": wanted}
        environment = {"KERNELMCP_HOME": str(home), "KERNELMCP_PACKAGES": json.dumps(settings)}
        with running_kernel(**environment) as kernel:
            assert wait_until(
                lambda: list((home / "images").glob("*.json")), PREPARE_SECONDS
            )  # the kernel has begun it
            found = kernel.run(
                "import sys; sorted({'pure', 'helper', 'withso', 'raises', 'writes'} & set(sys.modules))"
            )
            assert found.result == "['helper', 'pure']", "the first cell gets a guest that has them"
            assert kernel.run("import pure; pure.version, pure.__file__").result == (
                "('1.0', '/lib/packages/pure-1.0/pure.py')"
            )
            assert kernel.run("%pip install 'pure>=1'").outputs[-1]["content"]["data"]["text/plain"] == (
                "Already installed: pure-1.0"
            )
            assert "PackageConflict" in kernel.run("%pip install pure==2").error
            kernel.guests()[0].kill()
            kernel.run("1")
            assert kernel.run("import helper, pure; open('/lib/packages/pure-1.0/pure_data.txt').read()").status == "ok"
        asked = len(index.requests)
        with running_kernel(**environment) as kernel:
            assert kernel.run("import sys; 'pure' in sys.modules").result == "True"
        assert index.requests[asked:] == [], "the second kernel found the image"
    assert guest_code.read_bytes() == before, "a package wrote to our files when it was imported"


def test_without_the_packages_a_kernel_starts_all_the_same(tmp_path: Path) -> None:
    with serve_index(tmp_path / "index") as index:
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["absent"]}
        home = tmp_path / "home"
        environment = {"KERNELMCP_HOME": str(home), "KERNELMCP_PACKAGES": json.dumps(settings)}
        lock = home / "images" / "prepare.lock"
        with running_kernel(**environment) as kernel:
            assert kernel.run("1 + 1").result == "2"
            assert wait_until(lambda: lock.exists() and lock.stat().st_size > 0, PREPARE_SECONDS)
        asked = len(index.requests)
        with running_kernel(**environment) as kernel:
            assert kernel.run("1 + 1").result == "2"
        assert index.requests[asked:] == [], "not tried again so soon"


@pytest.mark.slow
def test_what_no_image_can_hold_is_left_out_of_it(tmp_path: Path) -> None:
    with serve_index(tmp_path / "index") as index:
        _fill(index)
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["pure", "opens"]}
        done = prepare(tmp_path / "home", packages)
        assert (done.returncode, done.stderr) == (0, "")
        environment = {"KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_PACKAGES": json.dumps(packages)}
        with running_kernel(**environment) as kernel:
            assert kernel.run("import sys; 'pure' in sys.modules, 'opens' in sys.modules").result == "(True, False)"
            assert kernel.run("import pure, opens; opens.file.read(4)").result == "'file'"


def test_a_large_package_that_a_session_installs_is_compiled_for_the_next_one(tmp_path: Path) -> None:
    large = {"large/__init__.py": "from large import data\n", "large/data.py": "x = 1\n" + "# padding\n" * 120_000}
    with serve_index(tmp_path / "index") as index:
        index.add("large", files=large)
        index.add("small")
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path)}
        environment = {"KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_PACKAGES": json.dumps(settings)}
        compiled = tmp_path / "home" / "packages" / "bytecode"
        with running_kernel(**environment) as kernel:
            assert kernel.run("%pip install large small\nimport large, small").status == "ok"
            assert wait_until(lambda: list(compiled.glob("*/large/data.*.pyc")), PREPARE_SECONDS)
        with (compiled.parent / "compile.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it has ended
        assert len(list(compiled.iterdir())) == 1, "the small one is not compiled"
        with running_kernel(**environment) as kernel:
            kernel.run("%pip install large\nfrom large import data")
            size = kernel.run("import os; os.path.getsize(data.__cached__)")
            assert int(size.result) > 0, size.error
            path = kernel.run("data.__cached__.rpartition('/')[0]").result
            assert path == "'/lib/bytecode/lib/packages/large-1.0/large'"
            shutil.rmtree(compiled)
            kernel.guests()[0].kill()
            kernel.run("1")
            assert kernel.run("import large.data; large.data.x").result == "1"


def test_a_package_is_there_although_nothing_can_compile_it(tmp_path: Path) -> None:
    with serve_index(tmp_path / "index") as index:
        index.add("large", files={"large/__init__.py": "x = 1\n" + "# padding\n" * 120_000})
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path)}
        environment = {"KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_PACKAGES": json.dumps(settings)}
        (tmp_path / "home" / "packages" / "compile.lock").mkdir(parents=True)
        with running_kernel(**environment) as kernel:
            assert kernel.run("%pip install large\nimport large; large.x").result == "1"
            kernel.guests()[0].kill()
            kernel.run("1")
            assert kernel.run("import large; large.x").result == "1"


@pytest.mark.slow
def test_a_package_is_imported_in_its_image_as_in_a_cell_and_draws_numbers_of_its_own(tmp_path: Path) -> None:
    """The image begins as the plain one does, in which all installations have drawn the same numbers."""
    code = "import random\nfrom IPython.display import display\ndisplay(1)\nnumber = random.random()\n"
    drawn: list[str | None] = []
    with serve_index(tmp_path / "index") as index:
        index.add("draws", files={"draws/__init__.py": code})
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["draws"]}
        for home in ("home", "other"):
            assert prepare(tmp_path / home, packages).returncode == 0
            environment = {"KERNELMCP_HOME": str(tmp_path / home), "KERNELMCP_PACKAGES": json.dumps(packages)}
            with running_kernel(**environment) as kernel:
                assert kernel.run("import sys; 'draws' in sys.modules").result == "True"
                drawn.append(kernel.run("import draws; draws.number").result)
                paths = kernel.run("[each for each in sys.path if 'draws' not in each]").result
    assert drawn[0] != drawn[1]
    with running_kernel() as kernel:
        assert kernel.run("import sys; sys.path").result == paths, "but for its package, as without an image"


@pytest.mark.slow
def test_packages_are_prepared_although_the_plain_image_is_damaged(tmp_path: Path) -> None:
    own = tmp_path / "home" / "images" / f"{build_id(PACKAGE)[:32]}.img"
    own.parent.mkdir(parents=True)
    for part in (".img", ".js", ".code", ".native"):
        shutil.copy(RUNTIME / f"boot{part}", own.with_suffix(part))
    with own.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    with serve_index(tmp_path / "index") as index:
        index.add("pure")
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["pure"]}
        done = prepare(tmp_path / "home", packages)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert list((tmp_path / "home" / "packages" / "bytecode").rglob("*.pyc"))


# It breaks each guest in the way that its kernel's environment says: of the arguments, one is a text from there.
BREAKS = """
import os, kernelmcp_guest
def attach(host, folder, note, *_):
    exec(note)
kernelmcp_guest.attach = attach
"""


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a kernel with whose image no guest starts."""
    folder = tmp_path_factory.mktemp("breaking")
    with serve_index(folder / "index") as index:
        index.add("breaks", files={"breaks/__init__.py": BREAKS})
        packages = {"index_url": index.url, "pyodide_url": str(folder), "preinstalled": ["breaks"]}
        assert prepare(folder / "home", packages).returncode == 0
    return {"KERNELMCP_HOME": str(folder / "home"), "KERNELMCP_PACKAGES": json.dumps(packages)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["os._exit(3)", "raise ValueError('here')", "while True: pass"])
def test_a_package_with_which_no_guest_starts_costs_its_place_in_the_image_and_nothing_else(
    breaking: dict[str, str], what: str
) -> None:
    assert list(Path(breaking["KERNELMCP_HOME"], "images").glob("*.img")), "the kernel has one to start with"
    with running_kernel(**breaking, KERNELMCP_FOLDER_NOTE=what) as kernel:
        # One that comes to no end of starting may take 10 s of CPU; 20 were over 60 s at a load of 14.
        ran = kernel.finish(kernel.send("import sys; 'breaks' in sys.modules"), seconds=5 * DEADLINE)
        assert ran.result == "False", ran.error
        kernel.guests()[0].kill()
        kernel.run("1")
        assert kernel.run("1 + 1").result == "2"


@pytest.mark.slow
def test_an_archive_is_checked_as_an_index_is(tmp_path: Path) -> None:
    archive = tmp_path / "set.zip"
    with serve_index(tmp_path / "index") as index:
        _fill(index)
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path)}
        done = prepare(tmp_path / "home", packages, "pure", "absent", f"--export={archive}")
        assert (done.returncode, done.stderr.startswith("kernelmcp: absent: ")) == (1, True), done
    offline = {"index_url": "http://127.0.0.1:9/simple", "pyodide_url": str(tmp_path)}
    done = prepare(tmp_path / "other", offline, f"--offline={archive}")
    assert (done.returncode, done.stderr) == (0, "")
    environment = {"KERNELMCP_HOME": str(tmp_path / "other"), "KERNELMCP_PACKAGES": json.dumps(offline)}
    with running_kernel(**environment) as kernel:
        assert kernel.run("import pure; pure.version").result == "'1.0'"
    damaged = tmp_path / "damaged.zip"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content + b"x" if name.endswith(".whl") else content)
    damaged_list = tmp_path / "list.zip"
    with zipfile.ZipFile(damaged_list, "w") as target:
        target.writestr("setup.json", json.dumps({"requirements": ["x"], "wheels": [{"name": "../x"}]}))
    (tmp_path / "text.zip").write_text("text")
    with zipfile.ZipFile(archive) as source:
        listed = json.loads(source.read("setup.json"))
    for number, odd in enumerate(({"requirements": ["\x1b[2J"]}, {"requirements": []}, {"wheels": None})):
        with zipfile.ZipFile(tmp_path / f"changed-list-{number}.zip", "w") as target:
            target.writestr("setup.json", json.dumps(listed | odd))
    wild = "pure-1.0-py3-none-\x1b[31m.whl"
    first = listed["wheels"][0] | {"file": wild}
    with zipfile.ZipFile(tmp_path / "changed-wild.zip", "w") as target:
        target.writestr("setup.json", json.dumps(listed | {"wheels": [first]}))
        target.writestr(f"wheels/{first['sha256']}/{wild}", "x")
    with zipfile.ZipFile(tmp_path / "changed-bytes.zip", "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("setup.json", json.dumps(listed))
    with zipfile.ZipFile(tmp_path / "changed-zeros.zip", "w", zipfile.ZIP_DEFLATED) as target:
        zeros = listed["wheels"][0] | {"sha256": hashlib.sha256(bytes(1 << 20)).hexdigest()}
        target.writestr("setup.json", json.dumps(listed | {"wheels": [zeros]}), zipfile.ZIP_STORED)
        target.writestr(f"wheels/{zeros['sha256']}/{zeros['file']}", bytes(1 << 20))
    packed = bytearray((tmp_path / "changed-bytes.zip").read_bytes())
    packed[42:60] = b"\xff" * 18  # within what was deflated
    (tmp_path / "changed-bytes.zip").write_bytes(packed)
    for number, changed in enumerate(
        (
            {"file": "../pure-1.0-py3-none-any.whl"},
            {"file": "pure-1.0-py3-none-x/../../pure-1.0-py3-none-any.whl"},
            {"file": 5},
            {"source": "me"},
            {"sha256": "0" * 64},
        )
    ):
        with zipfile.ZipFile(archive) as source, zipfile.ZipFile(tmp_path / f"changed-{number}.zip", "w") as target:
            listed = json.loads(source.read("setup.json"))
            listed["wheels"][0] |= changed
            target.writestr("setup.json", json.dumps(listed))
            for name in source.namelist()[1:]:
                target.writestr(name, source.read(name))
    for file in (damaged, damaged_list, tmp_path / "text.zip", tmp_path / "missing.zip", *tmp_path.glob("changed*")):
        done = prepare(tmp_path / "third", offline, f"--offline={file}")
        assert (done.returncode, "Traceback" in done.stderr) == (UNPREPARED, False), done.stderr
        assert done.stderr.startswith("kernelmcp: ")
        assert done.stderr.removesuffix("\n").isprintable(), done.stderr
    done = prepare(tmp_path / "third", offline, f"--offline={tmp_path / 'changed-zeros.zip'}")
    assert "is compressed" in done.stderr, "a few bytes would become as many as there is room for"
    done = prepare(tmp_path / "third", offline | {"allowed": ["helper"]}, f"--offline={archive}")
    assert "pure is not among the packages that this server allows" in done.stderr
    assert not (tmp_path / "third" / "setup.json").exists()


@pytest.mark.slow
def test_what_is_set_up_by_the_name_of_a_module_is_its_package(tmp_path: Path) -> None:
    with serve_index(tmp_path / "index") as index:
        index.add("serial", "6.6")
        index.add("pyserial", files={"serial.py": ""})
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path), "allowed": ["pyserial"]}
        done = prepare(tmp_path / "home", packages, "serial", "usb")
        assert "serial is the name of a module; its package is pyserial" in done.stdout
        assert done.stderr.startswith("kernelmcp: pyusb is not among the packages that this server allows")
        assert json.loads((tmp_path / "home" / "setup.json").read_text())["requirements"] == ["pyserial"]
        again = prepare(tmp_path / "home", packages, "serial")
        assert "making an image" not in again.stdout, "what the settings allow is found"


@pytest.mark.slow
def test_what_a_package_writes_when_it_is_imported_for_the_image_is_one_plain_line(tmp_path: Path) -> None:
    code = "from js import process\nprocess.stderr.write('\\x1b[2J\\nkernelmcp: a lie')\nprocess.exit(3)"
    with serve_index(tmp_path / "index") as index:
        index.add("loud", files={"loud/__init__.py": code})
        packages = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["loud"]}
        left = tmp_path / "home" / "images" / "x.1.preparing"
        left.parent.mkdir(parents=True)
        left.write_text("of a killed one")
        done = prepare(tmp_path / "home", packages)
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "kernelmcp: they are not in the image, and take longer to import: build_image.mjs ended with 3"
    )
    assert line.isprintable()
    assert not left.exists()


# -- with the real ones


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """`prepare`, as above, has made it; it had nothing to say."""
    with prepared_home() as home:
        yield home


def kernel_of(home: Path) -> AbstractContextManager[Kernel]:
    packages = {"pyodide_url": str(pyodide_folder()), "index_url": "http://127.0.0.1:9/simple"}
    return running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=json.dumps(packages))


@pytest.fixture
def kernel(home: Path) -> Iterator[Kernel]:
    with kernel_of(home) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def begun(home: Path) -> Iterator[Kernel]:
    """One for all tests of what comes after a first cell that has taken them from the image."""
    with kernel_of(home) as kernel:
        assert kernel.prepare("import numpy as np, pandas as pd").status == "ok"
        yield kernel


def shown(kernel: Kernel, code: str) -> list[str]:
    ran = kernel.run(code)
    assert ran.status == "ok", ran.error
    return [mime for message in ran.outputs for mime in message["content"].get("data", {})]


@pytest.mark.slow  # it may be the one that has the packages prepared, once for a machine and an image
def test_the_first_cell_gets_them_from_the_image(kernel: Kernel) -> None:
    assert shown(kernel, PLOT) == ["text/plain", "image/png"], "and nothing had to be installed"
    assert kernel.run(MODULES).result == "['PIL', 'matplotlib', 'numpy', 'pandas']"
    assert kernel.run("import numpy as np; float(np.linalg.inv(np.eye(200) * 2).sum())").result == "100.0"
    assert "broadcast" in kernel.run("np.ones(3) + np.ones(4)").error
    assert kernel.run("pd.read_csv(__import__('io').StringIO('a,b\\n1,x')).b.str.upper()[0]").result == "'X'"
    assert "python-dateutil" in kernel.run("%pip list").text()
    assert "Already installed: pandas" in str(kernel.run("%pip install pandas").outputs)
    assert len(kernel.guests()) == 1


def test_a_table_is_shown_as_in_a_notebook(begun: Kernel) -> None:
    table = "t = pd.DataFrame([[i * 100_000 for i in range(20)]] * 9).add_prefix('column_'); "
    head, *_ = (begun.run(f"{table}t.head()").result or "").split("\n")
    assert head.split() == [f"column_{number}" for number in range(20)]
    printed = begun.run("print(t.head())").text()
    assert [name for name in printed.split() if name.startswith("column_")] == head.split()


def test_a_first_cell_of_magics_gets_them_from_the_image(kernel: Kernel) -> None:
    assert shown(kernel, "%matplotlib inline") == []
    assert shown(kernel, PLOT) == ["text/plain", "image/png"]


def test_a_session_that_uses_none_pays_for_none(kernel: Kernel) -> None:
    assert kernel.run("1 + 1").result == "2"
    assert kernel.run(MODULES).result == "[]"
    assert "numpy" not in kernel.run("%pip list").text()


@pytest.mark.parametrize("stricter", [{"denied": ["Pandas"]}, {"allowed": ["six"]}, {"auto_install": False}])
def test_settings_that_became_stricter_hold(home: Path, stricter: dict[str, object]) -> None:
    packages = {"pyodide_url": str(pyodide_folder()), "index_url": "http://127.0.0.1:9/simple", **stricter}
    with running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=json.dumps(packages)) as kernel:
        assert kernel.run("import pandas").error.startswith("ModuleNotFoundError")
        assert (kernel.run("%pip install pandas").status == "ok") == ("auto_install" in stricter)


def test_a_later_cell_imports_them_with_its_variables_kept(kernel: Kernel) -> None:
    kernel.run("x = 42")
    assert "application/vnd.kernelmcp.packages+json" in shown(kernel, "import pandas as pd; pd.Series([x])")
    assert kernel.run("x, pd.__cached__.startswith('/lib/bytecode/lib/packages/pandas-')").result == "(42, True)"
    assert kernel.run("import seaborn; seaborn.__name__").result == "'seaborn'", "without an index"


LATER = """
import pandas as pd
import seaborn
frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": [2, 1, 4, 3]})
seaborn.kdeplot(frame.a)
kendall = round(float(frame.corr("kendall").loc["a", "b"]), 3)
kendall, len(frame.style.to_html()) > 100, bool(seaborn._statistics._no_scipy)
"""


def test_what_a_package_needs_only_later_is_there_without_an_index(kernel: Kernel) -> None:
    ran = kernel.run(LATER)
    assert (ran.result, ran.text("stderr")) == ("(0.333, True, False)", ""), ran.error


def test_a_guest_that_died_is_replaced_by_one_that_has_them(kernel: Kernel) -> None:
    kernel.run("import numpy as np")
    kernel.guests()[0].kill()
    assert kernel.run("x").error.startswith(("NameError", "DeadKernel", "GuestDied"))
    assert kernel.run("import numpy as np; int(np.arange(4).sum())").result == "6"


def test_what_the_first_cell_finds_is_what_was_written_before_it(kernel: Kernel) -> None:
    assert shown(kernel, "open('kept.txt', 'w').write('x')")
    kernel.guests()[0].kill()
    kernel.run("1")
    assert kernel.run("import numpy; open('kept.txt').read()").result == "'x'"


def test_an_interrupt_in_numpy_keeps_the_session(begun: Kernel) -> None:
    begun.run("a = np.random.rand(400, 400)")
    ran = begun.interrupt_once_it_prints("print('go')\nwhile True:\n    a = a @ a\n    a /= a.max()")
    assert ran.error.startswith("KeyboardInterrupt")
    assert begun.run("a.shape").result == "(400, 400)"


def test_an_array_that_is_too_large_is_an_error_that_keeps_the_session(begun: Kernel) -> None:
    begun.run("x = 1")
    assert "MemoryError" in begun.run("np.ones(2**27)").error
    ran = begun.run("np.ones(2**29)")  # more than an address has bits for, so numpy does not even try
    assert ran.error.startswith("ValueError: array is too big")
    assert "work in pieces" in "".join(ran.reply["content"]["traceback"])
    assert begun.run("x").result == "1"


def test_with_little_memory_there_is_no_such_guest(home: Path) -> None:
    environment = {
        "KERNELMCP_HOME": str(home),
        "KERNELMCP_PACKAGES": json.dumps({"pyodide_url": str(pyodide_folder())}),
    }
    with running_kernel(**environment, KERNELMCP_MEMORY_MB="128") as kernel:
        assert "application/vnd.kernelmcp.packages+json" in shown(kernel, "import numpy")
    assert list((home / "images").glob("*.img"))


def test_a_damaged_image_costs_the_packages_their_start_and_nothing_else(home: Path, kernel: Kernel) -> None:
    (image,) = (home / "images").glob("*.img")
    whole = image.read_bytes()
    (listing,) = (home / "images").glob("*.json")
    text = listing.read_text()
    try:
        image.write_bytes(whole[:-1000] + bytes(1000))
        assert kernel.run("import numpy as np; int(np.arange(4).sum())").result == "6"
    finally:
        image.write_bytes(whole)
        listing.write_text(text)
