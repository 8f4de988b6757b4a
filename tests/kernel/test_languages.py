"""A further language is a folder and a row: here Tally, in a copy of the installation that has both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import kernelmcp_kernel
from kernelmcp_kernel.languages import divide, language, language_info, table

from ..added_language import add_tally
from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until

PACKAGE = Path(kernelmcp_kernel.__file__).parent


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with running_kernel(search=add_tally(tmp_path_factory.mktemp("tally"))) as running:
        yield running


def test_cells_of_both_languages_share_a_session(kernel: Kernel) -> None:
    assert kernel.run("n = 41").status == "ok"
    assert kernel.run("%%tally\nn = 7").status == "ok"
    assert kernel.run("n + 1").result == "42"
    assert kernel.run("\n  %%tl with words\nn").text() == "[with words]\n7\n"
    assert kernel.run("%%tally\nsave seven.txt n").status == "ok"
    assert kernel.run("open('seven.txt').read()").result == "'7'"


def test_its_errors_are_the_cells(kernel: Kernel) -> None:
    ran = kernel.run("%%tally\nnothing")
    assert (ran.status, ran.error) == ("error", "TallyError: nothing is not defined")
    assert ran.kinds() == ["error"]


def test_its_guest_is_confined_as_pythons(kernel: Kernel) -> None:
    for path in ("/etc/passwd", str(Path.home()), str(PACKAGE / "_runtime" / "stamp.json")):
        assert kernel.run(f"%%tally\nread {path}").status == "error"


def test_an_interrupt_reaches_it_and_keeps_its_variables(kernel: Kernel) -> None:
    request = kernel.send("%%tally\nkept = 3\nwait")
    assert kernel.output(request)["content"]["text"] == "waiting\n"
    kernel.interrupt()
    assert kernel.finish(request).error.startswith("KeyboardInterrupt")
    assert kernel.run("%%tally\nkept").text() == "3\n"


def test_its_death_is_said_and_the_other_language_keeps_its_variables(kernel: Kernel) -> None:
    kernel.run("safe = 1")
    ran = kernel.run("%%tally\ncrash")
    assert ran.state_lost
    assert "it exited with status 3" in ran.error
    assert kernel.run("safe").result == "1"
    assert kernel.run("%%tally\nnothing").error.startswith("TallyError")


def test_completion_asks_the_language_of_the_cell(kernel: Kernel) -> None:
    kernel.run("%%tally\nscore = 1")
    reply = kernel.client.complete("%%tally\nsco", reply=True, timeout=DEADLINE)["content"]
    assert "score" in reply["matches"]
    assert (reply["cursor_start"], reply["cursor_end"]) == (8, 11)


def test_an_end_of_the_kernel_ends_every_guest(tmp_path: Path) -> None:
    with running_kernel(search=add_tally(tmp_path)) as kernel:
        kernel.run("%%tally\nn = 1")
        guests = kernel.guests()
        assert len(guests) == 2
    assert wait_until(lambda: not any(g.is_running() and g.status() != psutil.STATUS_ZOMBIE for g in guests))


def test_the_table_names_a_folder_for_each_row_and_no_magic_twice() -> None:
    magics = [magic for row in table() for magic in row.magics]
    assert len(magics) == len(set(magics))
    for row in table():
        assert {"file_extension", "mimetype"} <= set(language(row.name).language_info)
        assert (PACKAGE / "languages" / row.name / "language.py").is_file()
    folders = {file.parent.name for file in (PACKAGE / "languages").glob("*/language.py")}
    assert folders == {row.name for row in table()}


def test_the_version_of_the_row_is_the_guests() -> None:
    with running_kernel() as kernel:
        assert kernel.run("__import__('platform').python_version()").result == repr(language_info()["version"])


@pytest.mark.parametrize(
    "code", ["", "\n\n", "%%", "%% x", "%%bash\nls", "%%time\n1", "x = 1\n%%tally\n", "%%TALLY\nn"]
)
def test_whatever_names_no_other_language_is_the_main_ones(code: str) -> None:
    part = divide(code)
    assert (part.language, part.body, part.offset) == ("python", code, 0)
