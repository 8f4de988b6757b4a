"""`cp` and `mv` in the shell, and what else names files: nothing is lost that bash keeps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from .shell_guest import ShellGuest, shell_guest

_BACKUP = "backing up 'a' might destroy source;  'a~' not"


@pytest.fixture(scope="module")
def guest() -> Iterator[ShellGuest]:
    with shell_guest() as running:
        yield running


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("cp -nf b a; cp -fn b a; cat a; mv -nf b a; cat a", "ab"),
        ("echo c > a~; mv -b a~ a 2>&1; cp -b a~ a 2>&1; cat a", f"mv: {_BACKUP} moved\ncp: {_BACKUP} copied\na"),
        (
            "cp -r //workspace/copying/d d/e; ls d/e; cd d/e; realpath //tmp//; [ /$PWD -ef . ] && rm -r /$PWD",
            "f\n/tmp\n",
        ),
        (
            "cd d; mv . ../e; mv ../d/.. /tmp/e; mv -T . /tmp; cd /; mv /workspace/copying/d/. /tmp; ls -d /workspace",
            "/workspace\n",
        ),
    ],
)
def test_moves_and_copies_destroy_nothing_but_what_they_replace(guest: ShellGuest, code: str, printed: str) -> None:
    folder = guest.workspace / "copying"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "f").touch()
    for name in "ab":
        (folder / name).write_text(name)
    assert guest.apart(code, "/workspace/copying").stdout == printed
    assert (folder / "d" / "f").exists()


def test_modes_go_with_what_is_moved_and_end_with_what_is_removed(guest: ShellGuest) -> None:
    shutil.rmtree(guest.workspace / "modes", ignore_errors=True)
    (guest.workspace / "modes" / "d").mkdir(parents=True)
    found = guest.apart(
        """touch d/f; chmod 700 d/f; mv d e; mkdir d; touch d/f; stat -c %a e/f d/f
        rm -r e; mkdir e; touch e/f; stat -c %a e/f
        chmod 600 e/f; cp d/f e/f; stat -c %a e/f; cp e/f new; stat -c %a new; cp -p d/f e/f; stat -c %a e/f""",
        "/workspace/modes",
    )
    assert found.stdout.split() == ["700", "644", "644", "600", "600", "644"]


def test_cp_preserves_by_name_and_prints(guest: ShellGuest) -> None:
    done = "echo a > of; chmod 600 of; touch to; cp --preserve=mode,timestamps of to; stat -c %a to; cp to /dev/stdout"
    found = guest.apart(f"{done}; printf '\\xff' > of; cp of /dev/stdout; cp --preserve=some of to", "/workspace")
    assert found.stdout == "600\na\n"
    assert found.stderr.splitlines() == [
        "cp: what is not UTF-8 text cannot be copied to /dev/stdout here: use cat",
        "cp: option --preserve with a value is not supported here",
    ]


def test_bc_knows_its_last_number_and_reads_its_input_once(guest: ShellGuest) -> None:
    found = guest.apart("printf '5\na=9\nlast+1\n' | bc; echo 3 | bc /dev/stdin; echo 4 | bc //dev/fd/0")
    assert found.stdout == "5\n6\n3\n4\n"
