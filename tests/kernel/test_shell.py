"""Shell cells: what bash does, state from cell to cell, exit status, interrupts, bounds, and the session's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import Kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as running:
        yield running


def sh(kernel: Kernel, code: str) -> str:
    """What a cell prints to both streams, or its error behind it."""
    ran = kernel.run(f"%%bash\n{code}")
    return ran.text() + ran.text("stderr") + (ran.error if ran.status == "error" else "")


def test_state_is_kept_from_cell_to_cell(kernel: Kernel) -> None:
    assert sh(kernel, "mkdir -p deep; cd deep; x=5; export E=6; a=(1 2); f() { echo f$x; }; alias hi='echo'") == ""
    assert sh(kernel, "pwd; f; echo $E ${a[1]}; bash -c 'echo $E'") == "/workspace/deep\nf5\n6 2\n6\n"
    assert sh(kernel, "cd ..; pwd") == "/workspace\n"


def test_it_follows_what_python_changes_of_its_environment_variables(kernel: Kernel) -> None:
    shown = 'echo "[$NEW] [$OLD] [$HOME]"'
    kernel.run("%env NEW=1\nimport os\nos.environ |= {'OLD': '2', 'HOME': '/tmp', 'PATH': '/workspace', 'we ird': '3'}")
    assert (
        sh(kernel, f"{shown}; bash -c 'echo $NEW'; echo $PATH") == "[1] [2] [/tmp]\n1\n/usr/local/bin:/usr/bin:/bin\n"
    )
    assert sh(kernel, "NEW=own; export OLD=own") == ""
    kernel.run("os.environ['OLD'] = '4'")
    assert sh(kernel, shown) == "[own] [4] [/tmp]\n"
    kernel.run("del os.environ['NEW'], os.environ['OLD']; os.environ['HOME'] = '/home/pyodide'")
    assert sh(kernel, shown) == "[] [] [/workspace]\n"
    kernel.run("del os.environ['HOME']")
    assert sh(kernel, shown) == "[] [] []\n"
    kernel.run("os.environ['HOME'] = '/home/pyodide'")
    assert sh(kernel, shown) == "[] [] [/workspace]\n"


def test_options_of_set_end_with_the_cell(kernel: Kernel) -> None:
    assert sh(kernel, "set -u; echo $nope; echo never").endswith("unbound variable\nCalledProcessError: exit status 1")
    assert kernel.run("%%bash -eu\nset -xf -o pipefail; true").status == "ok"
    assert sh(kernel, "false; echo [$nope]; false | true && echo *.none; false | true") == "[]\n*.none\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("exit 3", "CalledProcessError: exit status 3"),
        ("echo before; false", "before\nCalledProcessError: exit status 1"),
        ("set -e; false; echo never", "CalledProcessError: exit status 1"),
        ("false; echo on", "on\n"),
        ("no-such-command", "CalledProcessError: exit status 127"),
        ("echo a; if", "CalledProcessError: exit status 2: "),
        ("trap 'echo bye' EXIT; exit 4", "bye\nCalledProcessError: exit status 4"),
        ("kill -9 $$; kill 1; echo alive", "CalledProcessError: exit status 137"),
        ("true", ""),
        ("# nothing", ""),
    ],
)
def test_the_exit_status_is_the_cells(kernel: Kernel, code: str, shown: str) -> None:
    assert shown in sh(kernel, code)
    assert sh(kernel, "echo usable") == "usable\n"


def test_what_stands_behind_the_magic(kernel: Kernel) -> None:
    ran = kernel.run("%%bash --no-raise-error\necho on; exit 3")
    assert (ran.status, ran.text()) == ("ok", "on\n")
    assert kernel.run("%%bash -eu\nfalse\necho never").error == "CalledProcessError: exit status 1"
    assert kernel.run("%%bash -u\nset +eu; echo $never").text() == "\n"
    assert "%%bash takes" in kernel.run("%%bash --out x\necho").error


def test_streams_come_in_order_and_at_once(kernel: Kernel) -> None:
    ran = kernel.run("%%sh\necho one; echo two >&2; echo three; printf 'four\\n'")
    sent = [(m["content"]["name"], m["content"]["text"]) for m in ran.outputs if m["msg_type"] == "stream"]
    assert sent == [("stdout", "one\n"), ("stderr", "two\n"), ("stdout", "three\nfour\n")] or sent == [
        ("stdout", "one\n"), ("stderr", "two\n"), ("stdout", "three\n"), ("stdout", "four\n"),
    ]  # fmt: skip
    assert kernel.interrupt_once_it_prints("%%bash\necho first; sleep 1000").text() == "first\n"


def test_streams_that_a_cell_sends_elsewhere_are_back_in_the_next(kernel: Kernel) -> None:
    assert sh(kernel, "exec > away.txt 2>&1; echo lost; ls nope").startswith("Called")
    assert sh(kernel, "echo back; wc -l < away.txt; echo err >&2") == "back\n2\nerr\n"


def test_files_are_the_sessions(kernel: Kernel) -> None:
    kernel.run("open('from_python.txt', 'w').write('a\\nb\\n')")
    assert sh(kernel, "wc -l < from_python.txt; echo é > made.txt; printf '\\xff' > bytes") == "2\n"
    assert kernel.run("open('made.txt').read(), open('bytes', 'rb').read()").result == "('é\\n', b'\\xff')"


def test_changed_files_are_reported(kernel: Kernel) -> None:
    sh(kernel, "touch gone kept")
    ran = kernel.run(
        "%%bash\nmkdir new; echo x > new/file; echo y >> kept; rm gone; echo z > /tmp/other; sed -i s/y/z/ kept"
    )
    assert sorted(ran.reply["metadata"]["kernelmcp"]["files"]) == ["gone", "kept", "new", "new/file"]


@pytest.mark.parametrize(
    "code",
    [
        "sleep 1e9",
        "sleep 1e9 & sleep 1000 & wait",
        "while true; do :; done",
        "while true; do echo flood; done",
        ":(){ :|:& };:; while true; do sleep 0.01; done",
        "until false; do x=$(date); done",
        "find . -exec sleep 1000 \\;; for f in *; do sleep 500; done",
        "sleep 1000\n" * 40_000,
    ],
    ids=lambda code: code[:40],
)
def test_an_interrupt_keeps_the_state(kernel: Kernel, code: str) -> None:
    assert sh(kernel, "kept=7; echo go") == "go\n"
    ran = kernel.interrupt_once_it_prints(f"%%bash\necho running;\n{code}")
    assert (ran.status, ran.error) == ("error", "KeyboardInterrupt: ")
    assert sh(kernel, "echo $kept") == "7\n"


@pytest.mark.parametrize("endless", ["awk 'BEGIN { while (1); }'", "jq -n 'def f: f; f'"])
def test_what_hears_no_interrupt_is_ended_and_that_is_said(kernel: Kernel, endless: str) -> None:
    kernel.run("there = 5")
    ran = kernel.interrupt_once_it_prints(f"%%bash\nkept=8; echo running; {endless}")
    assert "could not be interrupted" in ran.error
    assert sh(kernel, "echo [$kept]").endswith("[]\n")
    assert kernel.run("there").result == "5", "it is the shell that was ended"


def test_a_recursion_that_bashkit_does_not_bound_ends_the_shell_and_that_is_said(kernel: Kernel) -> None:
    kernel.run("there = 5")
    ran = kernel.run("%%bash\nkept=8; f='eval $f'; eval $f")
    assert ran.error == (
        "GuestDied: The sandbox process of shell ended: it crashed (SIGSEGV), most likely in a recursion without end. "
        "Its variables are lost; files are kept."
    )
    assert sh(kernel, "echo [$kept]").endswith("[]\n")
    assert kernel.run("there").result == "5"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("yes", "output limit"),
        ("cat /dev/zero", "at most 32 MB"),
        ("cat /dev/zero | tr '\\0' x | wc -c", "at most 32 MB"),
        ("x=a; while true; do x=$x$x; done", "all variables together"),
        (
            "declare -a many; for ((i = 0; ; i++)); do many[i]=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
            "all variables",
        ),
        ("echo {1..1000000000}", "brace range too large"),
        ("f() { f; }; f", "levels deep"),
        ("printf '%1000000000d' 1", "exceeds limit"),
        ("jq -n '[range(1e9)]'", "limit"),
        ("eval \"$(printf '(%.0s' {1..50000})\"", "syntax error"),
        ("echo $(( 2**63 )) $(( 1 / 0 ))", "division by 0"),
        ("for ((i = 0; i < 3000; i++)); do printf %05000d 1; done", "output"),
        ("# nothing\n" * 100_000, "more lines than one cell may"),
        ("echo $x | cat\n" * 100_000, "more commands than one cell may"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_too_much_is_bounded_and_the_state_stays(kernel: Kernel, code: str, said: str) -> None:
    assert sh(kernel, "kept=9") == ""
    ran = kernel.run(f"%%bash\n{code}")
    assert not ran.state_lost
    assert said in ran.text("stderr") + ran.error if ran.status == "error" else said in ran.text("stderr")
    assert sh(kernel, "unset x many i; echo $kept") == "9\n"


def test_a_guest_that_takes_all_its_memory_is_ended_and_that_is_said(kernel: Kernel) -> None:
    sh(kernel, "kept=1")
    ran = kernel.run("%%bash\nwhile :; do head -c 30M /dev/zero; done | wc -c")
    assert ran.state_lost or "at most" in ran.error
    assert sh(kernel, "echo usable") == "usable\n"


def test_files_that_are_too_many_or_too_large_meet_no_space_left() -> None:
    with running_kernel(KERNELMCP_WORKSPACE_MB="4", KERNELMCP_MAX_FILES="60") as kernel:
        assert "big: No space left on device" in sh(kernel, "kept=1; head -c 6M /dev/zero > big")
        assert "No space left on device" in sh(kernel, "head -c 900K /dev/zero > m; while cat m >> grow; do :; done")
        assert sh(kernel, "rm -f m big grow; head -c 3M /dev/zero > fits && echo fits") == "fits\n"
        assert "No space left on device" in sh(kernel, "for i in {1..100}; do echo > f$i || break; done")
        assert sh(kernel, "rm f*; echo $kept") == "1\n"


def test_the_working_directory_and_volumes_and_the_environment(tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in.txt").write_text(name)
    volumes = [
        {"name": f"v-{mode}", "path": str(tmp_path / mode), "mode": short}
        for mode, short in (("read", "ro"), ("write", "rw"))
    ]
    environment = {"KERNELMCP_VOLUMES": json.dumps(volumes), "KERNELMCP_WORKING_DIRECTORY": "/volumes/v-write"}
    with running_kernel(**environment, KERNELMCP_ENV='{"GIVEN": "yes"}') as kernel:
        assert sh(kernel, 'pwd; ls /volumes; cat /volumes/*/in.txt; echo " $GIVEN"') == (
            "/volumes/v-write\nv-read\nv-write\nreadwrite yes\n"
        )
        assert sh(kernel, "echo new > out.txt; cat out.txt") == "new\n"
        assert "Read-only file system" in sh(
            kernel, "cd /volumes/v-read; echo x > in.txt; echo x > new; rm in.txt; mv in.txt o"
        )
    assert os.listdir(tmp_path / "read") == ["in.txt"]
    assert (tmp_path / "read" / "in.txt").read_text() == "read"
    assert (tmp_path / "write" / "out.txt").read_text() == "new\n"


def test_a_program_and_a_command_have_no_variable_that_was_taken_from_them() -> None:
    with running_kernel(KERNELMCP_ENV='{"KEY": "k"}') as kernel:
        kernel.run("import os, subprocess\nos.environ['OWN'] = 'o'")
        kernel.run("open('e.py', 'w').write('import os; print(os.environ.get(\"KEY\"), os.environ.get(\"OWN\"))')")
        assert sh(kernel, "python e.py; env -i python e.py; env -i OWN=1 python e.py; (unset KEY; python e.py)") == (
            "k o\nNone None\nNone 1\nNone o\n"
        )
        commands = "for each in ('python e.py', 'python e.py | cat', 'echo $KEY $OWN'): "
        assert kernel.run(f"{commands}subprocess.run(each, shell=True)").text() == "k o\nk o\nk o\n"
        assert kernel.run(f"{commands}subprocess.run(each, shell=True, env={{}})").text() == "None None\nNone None\n\n"
        assert kernel.run(f"del os.environ['KEY']\n{commands}os.system(each)").text() == "None o\nNone o\no\n"


def test_a_program_that_exists_may_exit_as_one_that_does_not(kernel: Kernel) -> None:
    kernel.run("import subprocess")
    for command in (
        ["bash", "-c", "exit 127"],
        ["env", "no-such"],
        ["/bin/sh", "-c", "exit 127"],
        ["/usr/bin/env", "no"],
    ):
        assert kernel.run(f"subprocess.run({command}).returncode").result == "127"
    assert kernel.run("subprocess.run(['no-such'])").error == (
        "FileNotFoundError: [Errno 2] No such file or directory: 'no-such'"
    )


def test_a_session_that_runs_no_shell_starts_none() -> None:
    with running_kernel() as kernel:
        kernel.run("1")
        assert len(kernel.guests()) == 1
        sh(kernel, "true")
        assert len(kernel.guests()) == 2


@pytest.mark.parametrize(
    "cell",
    [
        "%%bash\necho go; python spins.py",
        "%%bash\necho go; x=$(python spins.py); echo $x",
        "%%bash\necho go; for i in 1 2 3; do python spins.py; done",
        "print('go'); get_ipython().system('python spins.py | cat')",
    ],
)
def test_an_interrupt_ends_the_cell_and_not_only_the_program_that_it_waits_for(kernel: Kernel, cell: str) -> None:
    kernel.run("open('spins.py', 'w').write('while True: pass'); kept = 1")
    kernel.run("%%bash\nkept=7")
    for _ in range(5):
        ran = kernel.interrupt_once_it_prints(cell)
        assert (ran.status, ran.error, ran.state_lost) == ("error", "KeyboardInterrupt: ", False)
    assert (kernel.run("kept").result, kernel.run("%%bash\necho $kept").text()) == ("1", "7\n")


def test_programs_that_run_beside_each_other_do_not_mix_what_is_put_back(kernel: Kernel) -> None:
    code = """
import asyncio, os, subprocess, sys
open('waits.py', 'w').write('import asyncio, sys; print(sys.argv[1]); asyncio.run(asyncio.sleep(0.2))')
async def job(n):
    return subprocess.run([sys.executable, 'waits.py', str(n)], capture_output=True, text=True)
found = await asyncio.gather(job(1), job(2))
print([(one.returncode, one.stdout) for one in found], 'another program runs' in found[1].stderr)
"""
    assert kernel.run(code).text() == "[(0, '1\\n'), (2, '')] True\n"
    assert kernel.run("print('here'); os.getcwd()").text() == "here\n"
    assert kernel.run("subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True).stdout").result == (
        "b'3\\n'"
    )


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("run('true; sleep 1000', shell=True, timeout=0.5)", "TimeoutExpired"),
        ("run('python quick.py | cat; sleep 1000', shell=True, timeout=0.5)", "TimeoutExpired"),
        ("run(['sh', '-c', 'exit 127'], capture_output=True).returncode", "127"),
        ("run(['nosuch'], capture_output=True)", "FileNotFoundError"),
        ("run('pwd', shell=True, cwd='/workspace/typo')", "FileNotFoundError"),
    ],
)
def test_subprocess_ends_as_it_does_elsewhere(kernel: Kernel, call: str, answer: str) -> None:
    kernel.run("import subprocess; open('quick.py', 'w').write('print(1)')")
    ran = kernel.run(f"subprocess.{call}")
    assert answer in (ran.result or ran.error)


@pytest.mark.parametrize("target", ["", ", stdout=1"])
def test_what_commands_write_for_a_program_is_bytes(kernel: Kernel, target: str) -> None:
    """Two of them write a character, one what is no text."""
    code = f"""
import subprocess, sys
lines = ["subprocess.run(['printf', %r]{target})" % each for each in (r'\\xc3', r'\\xa9', r'\\xff')]
open('halves.py', 'w').write('import subprocess\\n' + '\\n'.join(lines))
print(subprocess.run([sys.executable, 'halves.py'], capture_output=True).stdout)
for each in (r'\\xc3', r'\\xa9'): _ = subprocess.run(['printf', each], stdout=1)
"""
    assert kernel.run(code).text() == "b'\\xc3\\xa9\\xff'\né"


def test_a_shell_magic_below_another_ends_as_one(kernel: Kernel) -> None:
    assert "CalledProcessError" in kernel.run("get_ipython().run_cell_magic('bash', '', 'exit 3')").error
    assert kernel.run("get_ipython().run_cell_magic('bash', '--no-raise-error', 'exit 3')").status == "ok"
    assert "UsageError" in kernel.run("get_ipython().run_cell_magic('bash', '--out x', 'true')").error


def test_what_is_too_large_to_be_sent_is_refused_and_the_state_stays(kernel: Kernel) -> None:
    kernel.run("open('large.bin', 'wb').write(bytes(50 * 2**20))")
    ran = kernel.run("%%bash\nkept=8; curl -s --data-binary @large.bin http://localhost/; echo $? $kept; rm large.bin")
    assert (ran.state_lost, ran.text().split()[-1]) == (False, "8")


def test_what_a_program_prints_comes_while_it_runs_and_is_kept_when_it_is_interrupted(kernel: Kernel) -> None:
    program = "import sys, time; print(1); print(2, file=sys.stderr); print(3, flush=True); time.sleep(1000)"
    for code, out, err in (
        (f'%%bash\necho 0; python -c "{program}"', "0\n1\n3\n", "2\n"),
        (f'%%bash\necho 0; python -c "{program}" 2>&1', "0\n1\n2\n3\n", ""),
        (f'!python -c "{program}"', "1\n3\n", "2\n"),
        (f'!cd /tmp && python -c "{program}"', "1\n3\n", "2\n"),
    ):
        request = kernel.send(code)
        seen = [kernel.output(request)]
        while "3\n" not in seen[-1]["content"].get("text", ""):
            seen.append(kernel.output(request))
        kernel.interrupt()
        ran = kernel.finish(request, seen)
        assert ran.status == "error", code
        assert (ran.text(), ran.text("stderr")) == (out, err), code
        assert sh(kernel, "echo usable") == "usable\n"


def test_what_a_program_that_streams_prints_stands_in_order(kernel: Kernel) -> None:
    assert sh(kernel, "echo a; python -c 'print(1)' && echo b; python -c 'print(2)'; echo c") == "a\n1\nb\n2\nc\n"
    assert sh(kernel, "echo 'print(5); exit(4)' > p.py; python p.py; echo $?") == "5\n4\n"
