"""Programs and commands: `python file.py` in the shell runs in the session's Python, `!cmd` in Python is the shell's.

The shell is a stand-in of six commands, whose guest also does what a hostile one would.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp_kernel.guests.host_calls import MAX_CALLS

from ..added_language import add_shell, without_shell
from .conftest import running_kernel
from .driver import Kernel, wait_until
from .wheels import make_wheel

FILES = {
    "helper.py": "def shout(text): return text.upper()",
    "clean.py": """
        import os, sys
        from helper import shout
        print(sys.argv, __name__, os.getcwd(), os.path.basename(__file__), file=sys.stderr)
        for line in sys.stdin: print(shout(line.strip()))""",
    "data.csv": "b\na\n",
    "fails.py": "import sys\nprint('before')\n1 / 0",
    "spins.py": """
        print("spinning", flush=True)
        while True: pass""",
    "itself.py": """
        import subprocess, sys
        print(len(sys.argv), flush=True)
        sys.exit(subprocess.run([sys.executable, "itself.py", *sys.argv[1:], "x"]).returncode)""",
    "through_shell.py": """
        import subprocess, sys
        print(len(sys.argv))
        line = f"python through_shell.py {' '.join(sys.argv[1:])} x | cat"
        subprocess.run(line, shell=True, check=True)""",
    "stubborn.py": """
        import os
        os.write(1, b"begun")
        try:
            while True: pass
        except KeyboardInterrupt:
            os.system("echo late && wait")""",
    "wraps.py": """
        import io, sys
        sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", line_buffering=True)
        sys.stderr = io.TextIOWrapper(sys.stderr.detach(), encoding="utf-8")
        print("wrapped"); print("itself", file=sys.stderr)
        if sys.argv[1:]: 1 / 0""",
    "rude.py": """
        import asyncio, builtins, logging, os, signal, sys, helper
        helper.shout = None
        os.chdir("/tmp"); os.environ["LEFT"] = "1"; os.environ.pop("HOME", None)
        sys.argv = ["changed"]; sys.path.clear(); sys.path += ["/nowhere"]; sys.stdout = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        logging.basicConfig(level="DEBUG")
        builtins.print = None
        import gc, random
        random.seed(1); sys.setrecursionlimit(500); gc.disable(); logging.disable(logging.CRITICAL)
        x = "the program's"
        asyncio.get_event_loop().create_task(asyncio.sleep(1000), name="left")
        sys.exit("that was rude")""",
}
PACKAGES = {
    "likesql.py": """
        import logging, sys
        logging.getLogger("likesql").setLevel(logging.ERROR)
        logging.getLogger("likesql.pool").addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger("likesql.pool").addFilter(lambda record: "secret" not in record.msg)""",
    "likehttp.py": """
        import logging
        log = logging.getLogger("likehttp")
        log.addFilter(lambda record: True); log.propagate = False""",
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    wheels = tmp_path_factory.mktemp("wheels")
    make_wheel(wheels, "likes", files={name: textwrap.dedent(text) for name, text in PACKAGES.items()})
    settings = json.dumps({"wheel_folders": [str(wheels)]})
    with running_kernel(add_shell(tmp_path_factory.mktemp("shell")), KERNELMCP_PACKAGES=settings) as running:
        for name, text in FILES.items():
            running.prepare(f"open({name!r}, 'w').write({textwrap.dedent(text).lstrip()!r})")
        running.prepare("%pip install likes")
        running.prepare("import asyncio, os, subprocess, sys\nfrom kernelmcp_guest.blocking import host_call\nkept = 1")
        yield running


def is_usable(kernel: Kernel) -> None:
    """Both languages work, and Python has kept its variables."""
    assert kernel.run("kept").result == "1"
    assert kernel.run("!echo still here").text() == "still here\n"
    assert kernel.run("%%bash\ncat data.csv | python clean.py | sort").text() == "A\nB\n"


# -- the shell has Python


def test_a_program_in_a_pipe_has_its_arguments_folder_and_input(kernel: Kernel) -> None:
    ran = kernel.run("%%bash\ncat data.csv | python clean.py one 'two words' | sort")
    assert ran.text() == "A\nB\n"
    assert ran.text("stderr") == "['clean.py', 'one', 'two words'] __main__ /workspace clean.py\n"


PROGRAMS = {
    "python -c 'import sys; print(sys.argv, repr(sys.path[0]))' -x": ("['-c', '-x'] ''\n", ""),
    "echo 'print(6 * 7)' | python": ("42\n", ""),
    "echo 'import sys; print(sys.argv)' | python - a": ("['-', 'a']\n", ""),
    "python -m json.tool data.json": ('{\n    "a": 1\n}\n', ""),
    "python --version": ("Python 3.14.2\n", ""),
    "python -V": ("Python 3.14.2\n", ""),
    "python -uIBc 'print(1)'": ("1\n", ""),
    "python -W ignore -X utf8 -c 'print(2)'": ("2\n", ""),
    "python -W error -uc 'import warnings; warnings.warn(str(8))'": ("", "\nUserWarning: 8\n"),
    "python -Wignore -c 'import sys, warnings; warnings.warn(str(8)); print(sys.warnoptions)'": ("['ignore']\n", ""),
    "python -O -c 'assert False; print(__debug__)'": ("False\n", ""),
    "export A=5\ncd /tmp\npython -c 'import os; print(os.environ[\"A\"], os.getcwd())'": ("5 /tmp\n", ""),
    "python -c 'import sys; print(sys.stdin.read() == str())'": ("True\n", ""),
    "python -c 'import asyncio; asyncio.run(asyncio.sleep(0)); print(3)'": ("3\n", ""),
    "python -c 'import atexit; atexit.register(print, 1); print(0)'": ("0\n1\n", ""),
    "python -c 'import sys; sys.stdout.buffer.write(bytes([65, 10]))'": ("A\n", ""),
    "python -c 'input()'": ("", "EOFError: EOF when reading a line\n"),
    "python -c 'import sys; sys.stdout.reconfigure(encoding=str(\"utf-8\")); print(4)'": ("4\n", ""),
    "python wraps.py": ("wrapped\n", "itself\n"),
    "python -c 'exit(str(5))'": ("", "5\n"),
    "python fails.py": ("before\n", "ZeroDivisionError: division by zero\n"),
    "python missing.py": ("", "[Errno 44] No such file or directory\n"),
    "python -m nosuch.module": ("", "run %pip install NAME in a cell\n"),
    "python -m http.server": ("", "files in /workspace can be read directly\n"),
    "python": ("", "give it a file, -c CODE, -m MODULE, or a program as its input\n"),
    "python -i clean.py": ("", "give it a file, -c CODE, -m MODULE, or a program as its input\n"),
    "python --nonsense": ("", "[ARGUMENT ...]\n"),
    "pip install -e .": ("", "where FOLDER may also be a wheel in pure Python\n"),
}  # fmt: skip


@pytest.mark.parametrize("command", PROGRAMS, ids=PROGRAMS)
def test_programs_do_what_they_do_elsewhere(kernel: Kernel, command: str) -> None:
    kernel.run("open('data.json', 'w').write('{\"a\": 1}')")
    out, err = PROGRAMS[command]
    ran = kernel.run(f"%%bash\n{command}")
    assert (ran.status, ran.text()) == ("ok", out)
    assert ran.text("stderr").endswith(err) if err else ran.text("stderr") == ""


@pytest.mark.parametrize(
    ("end", "code"), [("1 / 0", 1), ("exit()", 0), ("exit(300)", 44), ("import os; os._exit(4)", 4),
                      ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143), ("raise SystemExit(True)", 1)],
)  # fmt: skip
def test_the_exit_code_is_the_programs(kernel: Kernel, end: str, code: int) -> None:
    ran = kernel.run(f"subprocess.run([sys.executable, '-c', {end!r}], capture_output=True).returncode")
    assert ran.result == str(code)


def test_a_program_that_gives_its_streams_away_keeps_its_output_its_error_and_its_exit_code(kernel: Kernel) -> None:
    run = "done = subprocess.run([sys.executable, *{}], capture_output=True, text=True)\ndone.returncode, done.stdout"
    assert kernel.run(run.format(["wraps.py", "fails"])).result == r"(1, 'wrapped\n')"
    assert kernel.run("done.stderr.splitlines()[0], done.stderr.splitlines()[-1]").result == (
        "('itself', 'ZeroDivisionError: division by zero')"
    )
    commands = "import subprocess, sys; sys.stdout.detach(); subprocess.run(['echo', 'b']); sys.stderr.close(); 1 / 0"
    assert kernel.run(run.format(["-c", commands])).result == r"(1, 'b\n')"
    assert kernel.run("done.stderr.splitlines()[-1]").result == "'ZeroDivisionError: division by zero'"


def test_its_traceback_shows_nothing_of_what_runs_it(kernel: Kernel) -> None:
    assert kernel.run("!python fails.py").text("stderr").splitlines() == [
        "Traceback (most recent call last):",
        '  File "/workspace/fails.py", line 3, in <module>',
        "    1 / 0",
        "    ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("how", ["%%bash\npython rude.py", "!python rude.py", "!echo x | python rude.py"])
def test_a_program_leaves_everything_as_it_was(kernel: Kernel, how: str) -> None:
    state = """
        import builtins, gc, helper, logging, random, signal
        await asyncio.sleep(0.01)
        (kept, "x" in globals(), sys.argv, sys.path, os.getcwd(), sorted(os.environ.items()), helper.shout("a"),
         logging.root.handlers, logging.root.level, logging.root.manager.disable, hash(random.getstate()),
         sys.getrecursionlimit(), gc.isenabled(), signal.getsignal(2), __import__("__main__").kept, print is not None,
         [task for task in asyncio.all_tasks() if task.get_name() == "left"], sys.stdout, sys.stdin, input)"""
    before = kernel.run(textwrap.dedent(state)).result
    assert before is not None
    assert kernel.run(how).text("stderr").endswith("that was rude\n")
    assert kernel.run(textwrap.dedent(state)).result == before


def test_a_program_logs_by_itself_and_leaves_the_notebooks_loggers(kernel: Kernel) -> None:
    logs = """
        import logging, sys
        logger = logging.getLogger("app.part")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.addHandler(logging.FileHandler("app.log"))
        logging.getLogger("noted").info("nobody gets this")
        logging.getLogger("noted").addHandler(logging.StreamHandler(sys.stdout))
        logger.info("once")"""
    notebook = """
        import gc, io, logging
        noted, taken = logging.getLogger("noted"), io.StringIO()
        noted.setLevel(logging.INFO)
        noted.addHandler(logging.StreamHandler(taken))"""
    kernel.run(f"open('logs.py', 'w').write({textwrap.dedent(logs)!r})")
    kernel.run(textwrap.dedent(notebook))
    for _ in range(2):
        assert kernel.run("!python logs.py").text() == "once\n"
    assert (
        kernel.run("noted.info('noted'); len(open('app.log').readlines()), taken.getvalue()").result
        == "(2, 'noted\\n')"
    )
    left = "[each for each in gc.get_objects() if isinstance(each, logging.FileHandler) and each.stream is not None]"
    part = "logging.getLogger('app.part')"
    assert kernel.run(f"{left}, {part}.handlers, {part}.level, {part}.propagate").result == "([], [], 0, True)"


def test_packages_keep_the_loggers_that_they_set_up_at_import(kernel: Kernel) -> None:
    """Also where a program imported them first."""
    user = """
        import likesql, logging
        log = logging.getLogger("likesql.pool")
        log.warning("quiet"), log.error("said"), log.error("secret")"""
    kernel.run(f"open('likesql_user.py', 'w').write({textwrap.dedent(user)!r})")
    for _ in range(2):
        assert kernel.run("!python likesql_user.py | python clean.py").text() == "SAID\n"
    assert kernel.run(textwrap.dedent(user)).text() == "said\n"
    changes = """
        import logging
        log = logging.getLogger("likesql.pool")
        log.setLevel("DEBUG"); log.addHandler(logging.FileHandler("likesql.log")); log.filters.clear()"""
    kernel.run(f"open('changes.py', 'w').write({textwrap.dedent(changes)!r})")
    kernel.run("!python changes.py")
    assert kernel.run("log.level, len(log.handlers), len(log.filters)").result == "(0, 1, 1)"


def test_a_program_that_imports_a_package_first_leaves_what_the_notebook_has_set_in_its_loggers(kernel: Kernel) -> None:
    notebook = """
        import gc, logging
        log = logging.getLogger("likehttp")
        log.setLevel("ERROR"); log.addHandler(mine := logging.NullHandler())"""
    program = """
        import logging, sys
        log = logging.getLogger("likehttp")
        log.addHandler(logging.StreamHandler(sys.stdout))
        import likehttp
        log.setLevel("INFO"); logging.getLogger("likehttp.part").setLevel("DEBUG")
        log.addHandler(logging.FileHandler("likehttp.log"))
        log.info("once")"""
    kernel.run(textwrap.dedent(notebook))
    kernel.run(f"open('likehttp_user.py', 'w').write({textwrap.dedent(program)!r})")
    left = "[each for each in gc.get_objects() if isinstance(each, logging.FileHandler) and each.stream is not None]"
    for _ in range(2):
        assert kernel.run("!python likehttp_user.py").text() == "once\n"
        state = (
            f"{left}, log.level, log.handlers == [mine], len(log.filters), log.propagate, log.getChild('part').level"
        )
        assert kernel.run(state).result == "([], 40, True, 1, False, 0)"


def test_a_program_has_no_filters_of_the_notebooks_loggers(kernel: Kernel) -> None:
    kernel.run("import logging\nmine = logging.getLogger('filtered')\nmine.addFilter(lambda record: False)")
    program = "import logging; log = logging.getLogger('filtered'); log.error('said'); log.addFilter(print)"
    assert kernel.run(f'!python -c "{program}"').text("stderr") == "said\n"
    assert kernel.run("len(mine.filters), mine.filters == [print]").result == "(1, False)"


def test_a_program_has_decimals_as_they_are_at_first(kernel: Kernel) -> None:
    kernel.run("import decimal\ndecimal.getcontext().prec = 6")
    program = "from decimal import *; print(Decimal(1) / 3); getcontext().prec = 3"
    assert kernel.run(f"!python -c '{program}'").text() == f"0.{'3' * 28}\n"
    assert kernel.run("decimal.Decimal(1) / 3").result == "Decimal('0.333333')"


def test_each_program_draws_its_own_numbers_and_the_notebook_its_next(kernel: Kernel) -> None:
    kernel.run("import random\nrandom.seed(1)\nexpected = random.random()\nrandom.seed(1)")
    drawn = {kernel.run("!python -c 'import random; print(random.random())'").text() for _ in range(2)}
    assert len(drawn) == 2
    assert kernel.run("random.random() == expected").result == "True"


def test_the_notebooks_numbers_are_its_own_also_if_a_program_leaves_numpy_without_a_generator(kernel: Kernel) -> None:
    with_numpy = """
        import random, sys, types
        def generator():
            module = types.ModuleType("numpy.random")
            module.get_state, module.seed = (lambda legacy: {"state": 1}), (lambda seeds: None)
            return module
        sys.modules["numpy.random"] = generator()
        random.seed(1)
        expected = random.random()
        random.seed(1)"""
    kernel.run(textwrap.dedent(with_numpy))
    try:
        kernel.run("""!python -c 'import random; random.random()'""")
        assert kernel.run("random.random() == expected").result == "True"
    finally:
        kernel.run("del sys.modules['numpy.random']")


@pytest.mark.parametrize("command", ["python there.py", "python there.py | cat"])
def test_a_program_finds_modules_where_the_notebooks_environment_says(kernel: Kernel, command: str) -> None:
    kernel.run("""
        os.makedirs("elsewhere", exist_ok=True)
        open("elsewhere/found_there.py", "w").write("")
        open("there.py", "w").write("import found_there, sys; print(sys.path.count('/workspace/elsewhere'))")
        os.environ["PYTHONPATH"] = ":/workspace/elsewhere" """)
    try:
        assert kernel.run(f"!{command}").text() == "1\n"
        assert kernel.run("'/workspace/elsewhere' in sys.path").result == "False"
    finally:
        kernel.run("del os.environ['PYTHONPATH']")


def test_each_program_imports_the_users_modules_as_they_are_now(kernel: Kernel) -> None:
    kernel.run("open('changing.py', 'w').write('value = 1')\nimport changing")
    assert kernel.run("!python -c 'import changing; print(changing.value)'").text() == "1\n"
    kernel.run("open('changing.py', 'w').write('value = 22')")
    assert kernel.run("!python -c 'import changing; print(changing.value)'").text() == "22\n"
    assert kernel.run("changing.value, sys.modules['changing'] is changing").result == "(1, True)"


def test_too_much_output_ends_a_program_and_is_said(kernel: Kernel) -> None:
    code = "while True: print(chr(120) * 1_000_000)"
    ran = kernel.run(f"done = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True)")
    assert ran.status == "ok", ran.error
    assert kernel.run("len(done.stdout), done.returncode").result == f"({16 * 2**20}, 1)"
    said = "a program's output is cut at 16 MiB: write it to a file\n"
    assert kernel.run(f"done.stderr.endswith({said!r})").result == "True"


def test_input_of_many_megabytes_arrives_and_more_is_refused(kernel: Kernel) -> None:
    count = "import sys; print(len(sys.stdin.buffer.read()))"
    code = "subprocess.run(f\"cat | python -c '{count}'\", shell=True, input=b'x' * size, stdout=-1).stdout"
    assert kernel.run(f"count = {count!r}; size = 20_000_000\n{code}").result == repr(b"20000000\n")
    assert kernel.run(f"size = 40_000_000\n{code}").status == "error"
    is_usable(kernel)


# -- Python has the shell


COMMANDS = {
    "print(get_ipython().alias_manager.retrieve_alias('ls'))": "ls -F\n",
    "!echo one": "one\n",
    "x = !cat data.csv\nprint(x, type(x).__name__)": "['b', 'a'] SList\n",
    "name = 'data.csv'\n!cat {name}\n!cat $name": "b\na\nb\na\n",
    "get_ipython().system('echo two')": "two\n",
    "!exit 3\nprint(_exit_code)": "3\n",
    "!exit 130\nprint(_exit_code)": "130\n",
    "!python -c 'exit(130)'\nprint(_exit_code)": "130\n",
    "print(os.system('echo three'))": "three\n0\n",
    "print(os.system('exit 3'))": "768\n",
    "print(os.popen('echo four').read())": "four\n\n",
    "with os.popen('echo five') as lines: print(list(lines))": "['five\\n']\n",
    "print(os.popen('exit 2').close())": "512\n",
    "subprocess.run('echo six', shell=True, check=True)": "six\n",
    "subprocess.run(['echo', 'seven  words'])": "seven  words\n",
    "print(subprocess.run(['cat'], input='eight', text=True, capture_output=True).stdout)": "eight\n",
    "print(subprocess.check_output('cat data.csv | sort', shell=True, text=True))": "a\nb\n\n",
    "print(subprocess.getoutput('echo nine && err ten'))": "nine\nten\n",
    "print(subprocess.getstatusoutput('exit 7'))": "(7, '')\n",
    "print(subprocess.run('err x', shell=True, capture_output=True).stderr)": "b'x\\n'\n",
    "print(subprocess.run('err x', shell=True, stderr=subprocess.DEVNULL))": (
        "CompletedProcess(args='err x', returncode=1)\n"),
    "print(subprocess.run('cat', shell=True, stdin=open('data.csv'), stdout=subprocess.PIPE).stdout)": "b'b\\na\\n'\n",
    "subprocess.run('echo kept', shell=True, stdout=open('o', 'w')); print(open('o').read())": "kept\n\n",
    "subprocess.run('pwd', shell=True, cwd='/tmp')": "/tmp\n",
    "subprocess.run('print B', shell=True, env={'B': 'c'})": "c\n",
    "os.environ['C'] = 'd'\n!print C": "d\n",
    "os.environ['D'] = 'e'\n"
    "subprocess.run([sys.executable, '-c', 'import os; print(*sorted(os.environ))'], env={'E': ''})":
        "E HOME LD_LIBRARY_PATH MPLBACKEND PATH USER\n",
    "try: subprocess.run(['nosuch'], capture_output=True)\nexcept FileNotFoundError as error: print(error)": (
        "[Errno 2] No such file or directory: 'nosuch'\n"),
    "try: subprocess.check_call('exit 9', shell=True)\nexcept subprocess.CalledProcessError as e: print(e.returncode)":
        "9\n",
    "try: subprocess.run('wait', shell=True, timeout=0.1, capture_output=True)\n"
    "except subprocess.TimeoutExpired as error: print(error)": "Command 'wait' timed out after 0.1 seconds\n",
    "p = subprocess.Popen(['cat'], stdin=-1, stdout=-1, text=True)\np.stdin.write('1\\n2'); p.stdin.close()\n"
    "print([line for line in p.stdout], p.wait(), p.poll())": "['1\\n', '2'] 0 0\n",
    "p = subprocess.Popen(['echo', 'x y'], stdout=-1, text=True)\n"
    "q = subprocess.Popen(['cat'], stdin=p.stdout, stdout=-1, text=True)\np.stdout.close()\nprint(q.communicate())":
        "('x y\\n', None)\n",
    "p = subprocess.Popen('echo no', shell=True, stdin=-1, stdout=-1)\np.kill()\nprint(p.poll(), p.communicate(b'x'))":
        "-9 (b'', None)\n",
    "p = subprocess.Popen('echo no', shell=True, stdin=-1, text=True)\np.terminate()\nprint(p.wait(), p.stdin.close())":
        "-15 None\n",
    "!python -c 'print(1)' | cat": "1\n",
    "!{sys.executable} -c 'print(2)'": "2\n",
    "subprocess.run(['python3', '-c', 'import subprocess; subprocess.run([\"echo\", \"deep\"])'])": "deep\n",
    "for _ in range(2): get_ipython().system("
    "    'python -c \"import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print(1)\"')": "1\n1\n",
    "!python -c 'import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.detach()); print(1)'": "1\n",
    "from IPython.utils.capture import capture_output\nwith capture_output() as c: get_ipython().system('echo no')\n"
    "print(repr(c.stdout))": "'no\\n'\n",
}  # fmt: skip


@pytest.mark.parametrize("code", COMMANDS, ids=COMMANDS)
def test_commands_do_what_they_do_elsewhere(kernel: Kernel, code: str) -> None:
    ran = kernel.run(code)
    assert (ran.status, ran.text()) == ("ok", COMMANDS[code]), ran.error
    assert ran.text("stderr") == ""


def test_output_comes_while_the_command_runs_and_in_order(kernel: Kernel) -> None:
    request = kernel.send("print('before')\n!wait")
    outputs = [kernel.output(request)]
    while not outputs[-1]["content"]["text"].endswith("waiting\n"):
        outputs.append(kernel.output(request))
    kernel.interrupt()
    ran = kernel.finish(request, outputs)
    assert ran.text() == "before\nwaiting\n"
    assert ran.error.startswith("KeyboardInterrupt")


# -- nesting


def test_a_program_that_runs_itself_ends_with_a_sentence(kernel: Kernel) -> None:
    ran = kernel.run("!python itself.py")
    assert (ran.text(), ran.text("stderr")) == (
        "1\n2\n3\n4\n5\n", "python3: programs that run programs are nested more than 5 deep\n")  # fmt: skip
    is_usable(kernel)


@pytest.mark.parametrize("start", ["!python through_shell.py", "%%bash\npython through_shell.py"])
def test_commands_of_programs_of_commands_have_shells_of_their_own_which_end_with_the_cell(
    kernel: Kernel, start: str
) -> None:
    guests = len(kernel.guests())
    ran = kernel.run(start)
    assert "commands that start programs that start commands are nested more than 3 deep" in ran.text("stderr")
    assert wait_until(lambda: len(kernel.guests()) == guests)
    is_usable(kernel)


# -- interrupts, limits and deaths


SPINNING = {
    "in the shell": "%%bash\npython spins.py",
    "of Python's": "!python spins.py",
    "within a command": "!echo x | python spins.py",
    "of a program's": "subprocess.run([sys.executable, '-c', 'import os; os.system(\"python spins.py | cat\")'])",
    "a command": "!wait",
    "a captured command": "x = !wait",
    "a program's command": "%%bash\npython -c 'import os; os.system(str().join([chr(119), \"ait\"]))'",
}


@pytest.mark.parametrize("what", SPINNING)
def test_an_interrupt_ends_it_and_keeps_everything(kernel: Kernel, what: str) -> None:
    request = kernel.send(SPINNING[what])
    kernel.wait_until_busy(request)
    # It comes before, while or after the program begins: each must end the cell.
    kernel.interrupt()
    ran = kernel.finish(request)
    assert ran.status == "error"
    assert not ran.state_lost
    is_usable(kernel)


def test_an_interrupt_in_the_middle_of_a_program_that_prints(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("!python spins.py")
    assert ran.error.startswith("KeyboardInterrupt")
    is_usable(kernel)


def test_a_program_that_nobody_waits_for_any_more_gets_no_command_done(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("%%bash\npython stubborn.py")
    assert ran.error.startswith("KeyboardInterrupt")
    assert ran.text() == "begun"
    is_usable(kernel)


def test_a_shell_that_ignores_an_interrupt_is_ended_alone(kernel: Kernel) -> None:
    request = kernel.send("!echo x && deaf")
    kernel.wait_until_busy(request)
    kernel.interrupt()
    assert kernel.finish(request).status == "error"
    is_usable(kernel)


def test_the_limit_of_a_cell_holds_for_what_others_do_for_it(kernel: Kernel) -> None:
    limit = {"kernelmcp": {"cpu_seconds": 1}}
    for code in ("%%bash\npython spins.py", "for _ in range(50): os.system('python spins.py | cat')"):
        message = kernel.client.session.msg("execute_request", {"code": code, "silent": False}, metadata=limit)
        kernel.client.shell_channel.send(message)
        ran = kernel.finish(message["header"]["msg_id"])
        assert ran.reply["metadata"]["kernelmcp"]["limit"] == "cpu_seconds"
    is_usable(kernel)


def test_a_python_program_that_is_slower_than_its_timeout_says_why_it_was_not_ended(kernel: Kernel) -> None:
    code = "subprocess.run([sys.executable, '-c', 'print(1)'], timeout={})"
    ran = kernel.run(code.format(1e-9))
    assert ran.error.startswith("TimeoutExpired: Command '['")
    assert ran.text() == "1\n"
    said = "kernelmcp: a Python program runs in the session's Python, where a timeout does not end it\n"
    assert ran.text("stderr") == said
    ran = kernel.run(code.format(1_000))
    assert (ran.status, ran.text("stderr")) == ("ok", "")


def test_the_timeout_of_a_program_is_not_that_of_what_it_starts(kernel: Kernel) -> None:
    started = "import subprocess; print(subprocess.Popen('echo x', shell=True).wait())"
    ran = kernel.run(f"subprocess.run([sys.executable, '-c', {started!r}], timeout=1e-9)")
    assert ran.error.startswith("TimeoutExpired: Command '['python3")
    assert ran.text() == "x\n0\n"


def test_the_death_of_a_shell_is_an_error_of_the_command(kernel: Kernel) -> None:
    ran = kernel.run("!crash")
    assert ran.error.startswith("OSError: the sandbox process of the shell ended: it exited with status 3")
    assert not ran.state_lost
    is_usable(kernel)


def test_the_death_of_python_is_an_error_in_the_shell_and_said_in_the_next_cell(tmp_path: Path) -> None:
    with running_kernel(search=add_shell(tmp_path)) as kernel:
        kernel.run("kept = 1")
        ran = kernel.run("%%bash\npython -c 'from kernelmcp_guest.bridge import bridge; bridge.exit(9)'\necho on")
        assert ran.text() == "on\n"
        assert "python: the Python process ended: it exited with status 9. Its variables are lost" in ran.text("stderr")
        lost = kernel.run("1")
        assert lost.state_lost
        assert lost.result == "1"
        assert "earlier variables are lost" in lost.text("stderr")


# -- hostile guests


def hostile(kernel: Kernel, call: str) -> str:
    """What a call of Python's guest is answered."""
    ran = kernel.run(f"try: print(host_call({call}))\nexcept OSError as error: print('refused:', error)")
    assert ran.status == "ok", ran.error
    return ran.text()


REFUSED = {
    "'run_command'": "refused: a command is text",
    "'run_command', command=5": "refused: a command is text",
    "'run_command', command='x' * 3_000_000": "refused: a command is text",
    "'run_command', command='echo', cwd=5": "refused: a working directory is a path",
    "'run_command', command='echo', cwd='x' * 5000": "refused: a working directory is a path",
    "'run_command', command='echo', environment=[]": "refused: an environment is an object",
    "'run_command', command='echo', environment={'a': 1}": "refused: arguments and variables are text",
    "'run_command', command='echo', environment={str(n): '' for n in range(20_000)}": "refused: arguments",
    "'run_command', command='echo', unset='A'": "refused: variables to unset are a list",
    "'run_command', command='echo', unset=[1]": "refused: arguments and variables are text",
    "'run_command', command='echo', stdin=5": "refused: stdin is base64",
    "'run_command', command='echo', stdin='*'": "refused: stdin is base64",
    "'run_command', command='echo', stdin='QUFB' * 13_000_000": "refused: stdin is over the limit of 36 MiB",
    "'ran_program'": "refused: no command of this cell waits",
    "'ran_program', token=[]": "refused: no command of this cell waits",
    "'ran_program', token='x' * 16, exit_code=0, stdout='', stderr=''": "refused: no command of this cell waits",
    "'run_program', argv=['python']": "refused: the host does not offer this call",
}


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call[:60])
def test_calls_that_no_guest_of_ours_makes_are_refused(kernel: Kernel, call: str) -> None:
    assert hostile(kernel, call).startswith(REFUSED[call])


def test_a_program_can_be_answered_once_and_only_as_it_must(kernel: Kernel) -> None:
    code = """
        def call(kind, **arguments):
            try: return host_call(kind, **arguments)
            except OSError as error: return str(error)
        run = call("run_command", command="python x && echo after", capture=True)
        wrong = [call("ran_program", token=run["token"], exit_code=code, stdout=out, stderr="")
                 for code, out in (("0", ""), (None, ""), (True, ""), (0, 5), (0, "*"))]
        good = call("ran_program", token=run["token"], exit_code=256, stdout="aGkK", stderr="")
        again = call("ran_program", token=run["token"], exit_code=0, stdout="", stderr="")
        print(run["run"]["argv"], wrong, good, again, sep="\\n")"""
    lines = kernel.run(textwrap.dedent(code)).text().splitlines()
    number, text = "an exit code is a number", "stdout is base64"
    assert lines[0] == "['python', 'x']"
    assert lines[1] == repr([number, number, number, text, text])
    assert lines[2].startswith("{'done': {'exit_code': 0,")
    assert lines[3] == "no command of this cell waits for that program"


def test_a_token_is_worth_nothing_in_another_cell(kernel: Kernel) -> None:
    kernel.run("left = host_call('run_command', command='python x', capture=True)")
    is_usable(kernel)
    assert hostile(kernel, "'ran_program', token=left['token'], exit_code=0, stdout='', stderr=''").startswith(
        "refused"
    )


def test_after_its_cell_nobody_runs_anything(kernel: Kernel) -> None:
    kernel.run("from kernelmcp_guest.bridge import bridge, request_id\nold = request_id.get()")
    code = """
        import json
        try: print(await bridge.ask(old, json.dumps({"call": "run_command", "command": "echo"})))
        except Exception as error: print(error)"""
    assert "the host answers only while a cell runs" in kernel.run(textwrap.dedent(code)).text()


def test_a_thousand_commands_at_once_are_refused_but_for_those_that_may_wait(kernel: Kernel) -> None:
    code = """
        import json
        call = json.dumps({"call": "run_command", "command": "wait", "capture": True})
        asked = [asyncio.ensure_future(bridge.ask(request_id.get(), call)) for _ in range(1000)]
        done, waiting = set(), set(asked)
        while len(waiting) > MOST:
            ended, waiting = await asyncio.wait(waiting, timeout=30, return_when="FIRST_COMPLETED")
            done |= ended
            if not ended: break
        ended, waiting = await asyncio.wait(waiting, timeout=1)
        print(len(waiting), {str(task.exception()).split(",")[0] for task in done | ended})
        del asked, done, ended, waiting"""
    guests = len(kernel.guests())
    kernel.run("from kernelmcp_guest.bridge import bridge, request_id")
    ran = kernel.run(textwrap.dedent(code).replace("MOST", str(MAX_CALLS)))
    assert ran.text().startswith(f"{MAX_CALLS} {{"), ran.error
    assert wait_until(lambda: len(kernel.guests()) == guests)
    is_usable(kernel)


ASKED_BY_THE_SHELL = {
    '{"call": "run_program"}': "a program is its name and its arguments",
    '{"call": "run_program", "argv": []}': "a program is its name and its arguments",
    '{"call": "run_program", "argv": "python"}': "a program is its name and its arguments",
    '{"call": "run_program", "argv": ["python", 5]}': "arguments and variables are text",
    '{"call": "run_program", "argv": ["python"], "cwd": {}}': "a working directory is a path",
    '{"call": "run_program", "argv": ["python"], "environment": "x"}': "an environment is an object",
    '{"call": "run_program", "argv": ["python"], "stdin": "*"}': "stdin is base64",
    '{"call": "run_program", "argv": ["python"], "output": "x"}': "output is apart, merged or null",
    '{"call": "run_command", "command": "echo"}': "the host does not offer this call",
    '{"call": "ran_program", "token": "x"}': "the host does not offer this call",
    '{"call": "install", "requirements": ["six"]}': "the host does not offer this call",
    '{"call": "kill", "signal": "SIGKILL"}': "the host does not offer this call",
}


@pytest.mark.parametrize("call", ASKED_BY_THE_SHELL)
def test_calls_that_no_shell_of_ours_makes_are_refused(kernel: Kernel, call: str) -> None:
    assert ASKED_BY_THE_SHELL[call] in kernel.run(f"%%bash\ncall {call}").text()
    assert ASKED_BY_THE_SHELL[call] in kernel.run(f"!call {call}").text()


def test_a_shell_that_asks_when_its_cell_has_ended_gets_nothing_run(kernel: Kernel) -> None:
    program = '{"call": "run_program", "argv": ["python", "-c", "open(\'late.txt\', \'w\')"]}'
    kernel.run(f"%%bash\nlate {program}")
    kernel.run(f"!late {program}")
    is_usable(kernel)
    assert kernel.run("os.path.exists('late.txt')").result == "False"


def test_a_shell_that_ends_its_cell_while_a_program_runs_ends_the_program(kernel: Kernel) -> None:
    ran = kernel.run('%%bash\nleave {"call": "run_program", "argv": ["python", "spins.py"]}')
    assert ran.status == "ok"
    is_usable(kernel)


ANSWERS = [
    '{"status": "ok"}',
    '{"status": "ok", "exit_code": "0"}',
    '{"status": "error"}',
    "{}",
    '{"status": "ok", "exit_code": 0, "stdout": 5}',
]


@pytest.mark.parametrize("reply", ANSWERS)
def test_a_malformed_answer_of_the_shell_is_an_error_of_the_command(kernel: Kernel, reply: str) -> None:
    ran = kernel.run(f"subprocess.run('answer {reply}', shell=True, capture_output=True)")
    assert ran.error.startswith("OSError: ")
    is_usable(kernel)


# -- without a shell


SENTENCES = {
    "%%ruby\nputs 1": "UsageError: the sandbox has no such program: cells are Python, or begin with %%bash",
    "%%bash\nls": "UsageError: the sandbox cannot start processes, and there is no shell here",
    "!ls": "UsageError: the sandbox cannot start processes, and there is no shell here",
    "x = !ls": "UsageError: the sandbox cannot start processes, and there is no shell here",
    "%ls": "UsageError: the sandbox cannot start processes, and there is no shell here",
    "import subprocess; subprocess.run(['ls'])": "OSError: the sandbox cannot start processes: use Python instead",
    "import os; os.system('ls')": "OSError: the sandbox cannot start processes: use Python instead",
    "import os; os.popen('ls')": "OSError: the sandbox cannot start processes: use Python instead",
    "import subprocess; subprocess.check_call('pip install six && echo ok', shell=True)": (
        "OSError: the sandbox cannot start processes: to install packages, write %pip install six in a cell"),
}  # fmt: skip


def test_where_there_is_no_shell_a_sentence_says_so_and_python_still_runs(tmp_path: Path) -> None:
    with running_kernel(search=without_shell(tmp_path)) as kernel:
        for code, sentence in SENTENCES.items():
            ran = kernel.run(code)
            assert ran.error.startswith(sentence), code
            assert "se Python instead" in ran.error or "%pip install six" in ran.error or "%%ruby" in code
            advised = "kernelmcp: instead of commands use pathlib and shutil" in ran.reply["content"]["traceback"][-1]
            assert advised == (ran.error == "OSError: the sandbox cannot start processes: use Python instead")
        assert kernel.run("!python -c 'print(1)'").text() == "1\n"
        code = "import subprocess, sys; subprocess.check_output([sys.executable, '-c', 'print(2)'])"
        assert kernel.run(code).result == repr(b"2\n")
        assert (
            kernel.run("!pip list && echo done").text().endswith("[not done, because there is no shell: echo done]\n")
        )
        for line in ("!pip freeze > a.txt", "%pip freeze > a.txt"):
            assert kernel.run(line).text().endswith("[not done, because there is no shell: > a.txt]\n"), line
