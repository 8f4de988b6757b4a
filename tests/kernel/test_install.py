"""`%pip install` in a real kernel. The tests share one, in this order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE

from ..processes import command_line
from .conftest import running_kernel
from .driver import Kernel, Ran, wait_until
from .wheels import Index, serve_index


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        index.add("alpha", requires=("beta",), files={"alpha_data/file.txt": "as it came"})
        for name in ("beta", "gamma", "delta"):
            index.add(name)
        yield index


@pytest.fixture(scope="module")
def kernel(home: Path, index: Index) -> Iterator[Kernel]:
    packages = {"index_url": index.url, "pyodide_url": str(home / "pyodide")}
    with running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=json.dumps(packages)) as running:
        yield running


def reports(ran: Ran) -> list[dict[str, list[dict[str, str]]]]:
    """What the kernel process says it installed."""
    displays = [message["content"]["data"] for message in ran.outputs if message["msg_type"] == "display_data"]
    return [data[PACKAGES_TYPE] for data in displays if PACKAGES_TYPE in data]


def test_pip_installs_into_the_running_session(kernel: Kernel) -> None:
    ran = kernel.run("%pip install alpha")
    assert ran.status == "ok", ran.error
    assert "alpha-1.0" in ran.text()
    (report,) = reports(ran)
    assert sorted(package["name"] for package in report["installed"]) == ["alpha", "beta"]
    assert kernel.run("import alpha, beta; from importlib.metadata import version; version('alpha')").result == "'1.0'"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import micropip\nawait micropip.install('gamma')", "gamma"),
        ("!pip install delta", "delta"),
        ("open('r.txt', 'w').write('# mine\\ndelta  # too\\n')\n%pip install -q -r r.txt", "delta"),
    ],
)
def test_other_ways_to_install_are_the_same(kernel: Kernel, code: str, name: str) -> None:
    ran = kernel.run(f"{code}\nimport {name}")
    assert ran.status == "ok", ran.error
    assert len(reports(ran)) == 1
    assert f"{name} " in kernel.run("%pip list").text()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("%pip install absent", "PackageNotFound: absent"),
        ("%pip install alpha==2", "PackageConflict: alpha==2"),
        ("%pip install --index-url=http://127.0.0.1:9/ x", "InvalidRequirement: pip install --index-url"),
        ("%pip install ../x", "InvalidRequirement: ../x: a folder or file"),
        ("%pip uninstall alpha", "PackageError: pip uninstall is not available: an installed package stays"),
        ("import kernelmcp_guest.packages as p; p.install(['--pre', 'x'])", "InvalidRequirement: '--pre'"),
        ("import kernelmcp_guest.packages as p; p.install({'a': 1})", "InvalidRequirement: no package"),
        ("import kernelmcp_guest.packages as p; p.install(['a'] * 1000)", "InvalidRequirement: 1000 packages"),
    ],
)
def test_what_cannot_be_installed_is_an_exception_with_advice(kernel: Kernel, code: str, error: str) -> None:
    assert error in kernel.run(code).error


def test_a_guest_cannot_claim_an_installation_or_mount_a_folder(kernel: Kernel) -> None:
    ran = kernel.run(f"""
from kernelmcp_guest.bridge import send
claim = {{"{PACKAGES_TYPE}": {{"installed": [{{"name": "x; rm", "version": "1", "source": "pypi"}}]}}}}
send("display_data", data=claim, metadata={{}})
send("execute_result", data=claim, metadata={{}}, execution_count=1)
send("update_display_data", data=claim, metadata={{}}, transient={{}})
send("mount", packages=[{{"folder": "/etc", "point": "/mnt"}}])
from IPython.display import display
display(claim, raw=True)
import os
os.path.exists("/mnt/passwd")
""")
    assert ran.status == "ok", ran.error
    assert ran.result == "False"
    assert ran.kinds() == ["execute_result"]


def test_a_guest_cannot_change_the_cache(kernel: Kernel, home: Path) -> None:
    (file,) = home.glob("packages/unpacked/*/alpha_data/file.txt")
    path = "os.path.join(os.path.dirname(alpha.__file__), 'alpha_data', 'file.txt')"
    for attempt in (
        f"open({path}, 'w').write('changed')",
        f"open({path}, 'a').write('changed')",
        f"os.truncate({path}, 0)",
        f"os.remove({path})",
        f"os.rename({path}, 'mine')",
        f"os.chmod({path}, 0o777)",
        "open(os.path.join(os.path.dirname(alpha.__file__), 'new.py'), 'w')",
        "os.symlink('/etc/passwd', os.path.join(os.path.dirname(alpha.__file__), 'link'))",
        "os.rmdir(os.path.dirname(alpha.__file__))",
    ):
        ran = kernel.run(f"import os, alpha\n{attempt}")
        assert ran.status == "error", attempt
        assert not ran.state_lost, attempt
    assert file.read_text() == "as it came"
    assert sorted(entry.name for entry in file.parent.parent.iterdir()) == [
        ".kernelmcp-package.json",
        "alpha-1.0.dist-info",
        "alpha.py",
        "alpha_data",
    ]


def test_an_interrupt_ends_pip(kernel: Kernel, index: Index) -> None:
    with index.stalled():
        request = kernel.send("%pip install stalled")
        assert wait_until(lambda: any("stalled" in path for path in index.requests))
        kernel.interrupt()
        assert kernel.finish(request).error.startswith("KeyboardInterrupt")
        children = kernel.process.children(recursive=True)
        assert wait_until(lambda: not any(_is_pip(child) for child in children))
    assert kernel.run("import alpha").status == "ok"


def _is_pip(process: psutil.Process) -> bool:
    return any(part.endswith("pip_main.py") for part in command_line(process))


def test_packages_outlive_the_guest(kernel: Kernel) -> None:
    kernel.guests()[0].kill()
    kernel.run("1")
    ran = kernel.run("import alpha, gamma; alpha.version")
    assert ran.result == "'1.0'", ran.error
