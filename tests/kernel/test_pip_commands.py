"""The ways to ask for packages that people and models have learnt elsewhere: each is done, or says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE

from .conftest import running_kernel
from .driver import Kernel, Ran
from .wheels import Index, make_wheel, serve_index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with serve_index(tmp_path_factory.mktemp("index")) as index:
        for name in (
            "one",
            "two",
            "three",
            "four",
            "five",
            "sixth",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            *"abcdef",
        ):
            index.add(name)
        index.add("growing", "1.0")
        index.add("early", "1.0")
        index.add("early", "2.0rc1")
        index.add("alone", requires=("cannot-be-had>=2", "one; sys_platform == 'win32'"))
        yield index


@pytest.fixture(scope="module")
def packages(index: Index, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of a kernel, as its environment."""
    home = tmp_path_factory.mktemp("home")
    settings = {"index_url": index.url, "pyodide_url": str(home / "pyodide")}
    return {"KERNELMCP_HOME": str(home), "KERNELMCP_PACKAGES": json.dumps(settings)}


@pytest.fixture(scope="module")
def kernel(packages: dict[str, str]) -> Iterator[Kernel]:
    with running_kernel(**packages) as running:
        yield running


def told(ran: Ran) -> str:
    """What is displayed of an installation."""
    bundles = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    return "\n".join(bundle["text/plain"] for bundle in bundles if PACKAGES_TYPE in bundle)


FILES = """
open('r.txt', 'w').write('--requirement s.txt  # more')
open('s.txt', 'w').write('eight')
"""

FILES_OF_WINDOWS = """
import os
os.makedirs('in/deep')
open('in/dev.txt', 'w', encoding='utf-8-sig').write('-r deep/base.txt')
open('in/deep/base.txt', 'w', encoding='utf-16').write('-r ../more.txt')
open('in/more.txt', 'w', encoding='utf-8-sig').write('ten')
"""


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import sys\n!{sys.executable} -m pip install one", "one"),
        ("!python3 -m pip install -q two", "two"),
        ("%uv pip install three", "three"),
        ("!uv pip install --system four", "four"),
        ("!pip install 'five>=1' | tail -1", "five"),
        ("!pip install --upgrade pip && pip install sixth > /dev/null 2>&1", "sixth"),
        ("%pip install --prefer-binary --no-build-isolation seven", "seven"),
        (FILES + "%pip install -rr.txt", "eight"),
        (FILES_OF_WINDOWS + "%pip install -r in/dev.txt", "ten"),
        ("%pip install -U 'pip>=24' eleven", "eleven"),
        ("%pip install a | tail -3", "a"),
        ("%pip install b 2>&1 | grep -v already", "b"),
        ("%pip install c;", "c"),
        ("%pip install --upgrade pip && pip install d", "d"),
        ('!pip install e > "log file.txt"', "e"),
        ("%uv pip install f>log.txt", "f"),
    ],
)  # fmt: skip
def test_it_is_an_installation(kernel: Kernel, code: str, name: str) -> None:
    ran = kernel.run(code)
    assert (ran.status, told(ran)) == ("ok", f"Successfully installed {name}-1.0"), ran.error


@pytest.mark.parametrize(
    ("line", "name"),
    [("%pip install 'bounded >0.5,<3.0.dev0'", "bounded"), ('!pip install -q "limited >0.5,<3.0.dev0"', "limited")],
)
def test_bounds_in_quotes_are_no_redirection(kernel: Kernel, index: Index, line: str, name: str) -> None:
    index.add(name, "1.0")
    index.add(name, "3.0")
    assert told(kernel.run(line)) == f"Successfully installed {name}-1.0"


COMPILED = r"""
open('p.txt', 'w').write('''#
# made by pip-compile
nine==1.0 \
    --hash=sha256:%s \
    --hash=sha256:%s
    # via -r requirements.in
''')
%%pip install -r p.txt
"""


def test_hashes_of_a_requirements_file_are_compared(kernel: Kernel) -> None:
    wrong = kernel.run(COMPILED % ("0" * 64, "1" * 64)).error
    assert wrong.startswith("PackageInvalid: nine 1.0: its file has sha256:")
    assert "none of the 2 that are pinned" in wrong
    [own] = re.findall(r"sha256:([0-9a-f]{64})", wrong)
    assert told(kernel.run(COMPILED % ("0" * 64, own))) == "Successfully installed nine-1.0"


WHY_NOT = {
    "%pip install -e .": "InvalidRequirement: pip install -e is not available here: a folder or file is not installed",
    "%pip install .": "InvalidRequirement: .: a folder or file is not installed: %pip install NAME brings",
    "%pip install dist/mine.whl": "InvalidRequirement: dist/mine.whl: a folder or file is not installed",
    "%pip install git+https://a.b/c.git": "InvalidRequirement: git+https://a.b/c.git: packages are installed by name",
    "%pip install x @ https://a.b/x.whl": "InvalidRequirement: https://a.b/x.whl: packages are installed by name",
    "%pip install -c c.txt x": "InvalidRequirement: pip install -c is not available here: write the versions into",
    "%pip install x -i https://a.b": "InvalidRequirement: pip install -i is not available here: the server's setting",
    "%pip install --target=/tmp x": "InvalidRequirement: pip install --target is not available here: each session has",
    "%pip install --no-binary :all: x": (
        "InvalidRequirement: pip install --no-binary is not available here: %pip install NAME takes a wheel"
    ),
    "%pip install --dry-run x": "InvalidRequirement: pip install --dry-run is not available here: the sandbox has",
    "open('r', 'w').write('-r s')\nopen('s', 'w').write('-r r')\n%pip install -r r": (
        "InvalidRequirement: r names itself: r -> s -> r"
    ),
    "%pip install -r missing.txt": "InvalidRequirement: missing.txt: there is no file of that name",
    "import os\nos.makedirs('folder')\n%pip install -r folder": "InvalidRequirement: folder: Is a directory",
    "%pip install 'x": "InvalidRequirement: install 'x: No closing quotation",
    "import os\nos.mkdir('q')\nopen('q/r', 'w').write('-r ../q/r')\n%pip install -r ./q/r": (
        "InvalidRequirement: q/r names itself: ./q/r -> q/r -> q/r"
    ),
    "%pip list --outdated": "PackageError: pip list --outdated is not available: %pip install -U NAME says whether",
    "%pip uninstall -y one": "PackageError: pip uninstall is not available: an installed package stays as long",
    "%pip download one": "PackageError: pip download is not available: %pip install NAME finds, fetches and checks",
    "%pip wheel .": "PackageError: pip wheel is not available: %pip install NAME takes a wheel, or builds a source in",
    "%pip index versions one": "PackageError: pip index is not available: %pip install NAME==0 lists the versions",
    "!uv add one": "PackageError: uv add is not available: there are no projects",
}  # fmt: skip


@pytest.mark.parametrize("code", WHY_NOT, ids=WHY_NOT)
def test_it_says_in_one_line_why_not(kernel: Kernel, code: str) -> None:
    ran = kernel.run(code)
    assert ran.error.startswith(WHY_NOT[code])
    (line,) = ran.reply["content"]["traceback"]
    assert re.sub(r"\x1b\[[0-9;]*m", "", line) == ran.error
    assert len(line) < 300


def test_quietly_only_the_outcome_is_shown(kernel: Kernel, index: Index) -> None:
    for name in ("loud", "quiet", "silent"):
        index.add(name)
    assert "Collecting loud" in kernel.run("%pip install -v loud").text()
    for line, name in (("%pip install -q quiet", "quiet"), ("!pip --quiet install silent", "silent")):
        ran = kernel.run(line)
        assert (ran.text(), ran.text("stderr"), told(ran)) == ("", "", f"Successfully installed {name}-1.0")


def test_programs_install_as_well(kernel: Kernel) -> None:
    code = "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', '-q', 'one'])"
    assert kernel.run(code).text().splitlines()[-1].endswith("one-1.0"), "a program's own output"
    assert kernel.run("import one").status == "ok"
    ran = kernel.run("done = subprocess.run(['pip', 'uninstall', 'one'], capture_output=True); done.returncode")
    assert ran.result == "1"
    assert "ERROR: pip uninstall is not available" in kernel.run("print(done.stderr)").text()


def test_show_names_what_a_package_needs_and_not_what_its_extras_would(kernel: Kernel, index: Index) -> None:
    extras = ("growing; extra == 'more'", "early ; python_version > '3' and extra=='more'")
    make_wheel(index.folder("showing"), "showing", "1.0", ("one", *extras))
    kernel.run("%pip install showing")
    assert kernel.run("%pip show showing").text().endswith("Requires: one\n\n")


def test_prereleases_only_for_who_asks(kernel: Kernel, packages: dict[str, str]) -> None:
    assert told(kernel.run("%pip install --pre early")) == "Successfully installed early-2.0rc1"
    with running_kernel(**packages) as other:
        assert told(other.run("%pip install early")) == "Successfully installed early-1.0"
    with running_kernel(**packages) as other:
        assert told(other.run("import micropip; await micropip.install('early', pre=True)")).endswith("early-2.0rc1")


def test_an_upgrade_says_what_is_there_and_whether_there_is_more(kernel: Kernel, index: Index) -> None:
    assert told(kernel.run("%pip install -U growing")) == "Successfully installed growing-1.0"
    newest = "Already installed: growing-1.0\ngrowing 1.0 is the newest available for this sandbox"
    assert told(kernel.run("%pip install -qU growing")) == newest
    index.add("growing", "2.0")
    assert told(kernel.run("%pip install growing")) == "Already installed: growing-1.0"
    assert told(kernel.run("%pip install --upgrade growing")) == (
        "Already installed: growing-1.0\ngrowing 1.0 stays as it is. For 2.0, the newest, use a new session, or "
        "reset_workspace with scope all"
    )
    assert told(kernel.run("%pip install -U traitlets")).endswith("comes with the sandbox, and stays as it is")


def test_without_what_it_needs_and_what_is_then_missing(
    kernel: Kernel, packages: dict[str, str], index: Index, tmp_path: Path
) -> None:
    assert kernel.run("%pip check").text() == "No broken requirements found.\n"
    assert kernel.run("%pip install alone").error.startswith("PackageNotFound: alone")
    assert told(kernel.run("%pip install --no-deps alone")) == "Successfully installed alone-1.0"
    missing = "alone 1.0 requires cannot-be-had, which is not installed.\n"
    assert kernel.run("%pip check").text() == missing
    with running_kernel(**packages) as other:
        ran = other.run("%pip install alone==1.0")
        assert ran.error.startswith("PackageNotFound: alone"), "what was done once is no resolution"
        assert told(other.run("%pip install --no-deps alone==1.0")) == "Successfully installed alone-1.0"
        make_wheel(index.folder("cannot-be-had"), "cannot_be_had", "1.0")
        assert told(other.run("%pip install cannot-be-had")) == "Successfully installed cannot-be-had-1.0"
        assert other.run("%pip check").text() == (
            "alone 1.0 has requirement cannot-be-had>=2, but you have cannot-be-had 1.0.\n"
        )


def test_what_pip_lists_has_the_form_that_is_asked_for(kernel: Kernel) -> None:
    listed = [line.split() for line in kernel.run("%pip list").text().splitlines()]
    found = [{"name": name, "version": version} for name, version in listed]
    assert found
    assert json.loads(kernel.run("%pip list --format=json").text()) == found
    frozen = kernel.run("!pip list --format freeze").text()
    assert frozen == kernel.run("%pip freeze").text() == "".join(f"{name}=={version}\n" for name, version in listed)


def test_what_pip_lists_is_written_to_a_file(kernel: Kernel) -> None:
    frozen = kernel.run("%pip freeze").text()
    for line in (
        "!pip freeze > a.txt",
        "%pip freeze > a.txt",
        "x = !pip freeze > a.txt",
        '!pip freeze > "a.txt"',
        "!pip freeze>a.txt",
        "%uv pip freeze > a.txt",
        "!uv pip freeze > './a.txt'",
    ):
        assert kernel.run(line).text() == ""
        assert kernel.run("import os\nprint(open('a.txt').read(), end=''); os.remove('a.txt')").text() == frozen, line


def test_what_comes_after_an_installation_is_a_command_of_its_own(kernel: Kernel) -> None:
    ran = kernel.run("!pip install -q one > /dev/null; echo done")
    assert (ran.status, ran.text()) == ("ok", "done\n"), ran.error


def test_what_pip_lists_goes_through_a_pipe(kernel: Kernel) -> None:
    listed = kernel.run("!pip list").text().splitlines()
    assert kernel.run("!pip list | head -3").text().splitlines() == listed[:3]
    assert kernel.run("count = !pip list | wc -l\nint(count[0])").result == str(len(listed))
