"""What a cell can do, seen from a Jupyter client."""

import pytest

from .conftest import running_kernel
from .driver import DEADLINE, Kernel


def test_variables_functions_and_imports_stay(kernel: Kernel) -> None:
    kernel.run("import math\ndef double(x): return 2 * x\nn = 20")
    assert kernel.run("double(n) + math.floor(2.5)").result == "42"


def test_outputs_come_in_the_order_of_the_program(kernel: Kernel) -> None:
    code = (
        "import sys\nfrom IPython.display import display, HTML\nprint('one')\nprint('two', file=sys.stderr)\n"
        "display(HTML('<b>three</b>'))\nprint('four')\n'five'"
    )
    ran = kernel.run(code)
    assert ran.kinds() == ["stdout", "stderr", "display_data", "stdout", "execute_result"]
    assert (ran.text(), ran.text("stderr"), ran.result) == ("one\nfour\n", "two\n", "'five'")


def test_prints_arrive_while_the_cell_runs(kernel: Kernel) -> None:
    request = kernel.send("print('first', flush=True)\ninput()", allow_stdin=True)
    assert kernel.output(request)["content"]["text"] == "first\n"
    kernel.client.get_stdin_msg(timeout=DEADLINE)
    kernel.client.input("")
    assert kernel.finish(request).status == "ok"


def test_a_display_is_updated_by_its_id(kernel: Kernel) -> None:
    ran = kernel.run("from IPython.display import display\nshown = display(1, display_id='d')\nshown.update(2)")
    assert ran.kinds() == ["display_data", "update_display_data"]
    assert [m["content"]["transient"] for m in ran.outputs] == [{"display_id": "d"}] * 2


def test_a_picture_is_base64_text(kernel: Kernel) -> None:
    ran = kernel.run("from IPython.display import Image, display\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\nrest'))")
    assert ran.outputs[0]["content"]["data"]["image/png"].strip() == "iVBORw0KGgpyZXN0"


def test_top_level_await_and_asyncio_run_work(kernel: Kernel) -> None:
    assert kernel.run("import asyncio\nawait asyncio.sleep(0, 'awaited')").result == "'awaited'"
    assert kernel.run("asyncio.run(asyncio.sleep(0, 'ran'))").result == "'ran'"


def test_output_of_a_task_left_behind_goes_to_the_cell_that_started_it(kernel: Kernel) -> None:
    code = (
        "import asyncio\ngo = asyncio.Event()\n"
        "async def later():\n    await go.wait()\n    print('late', flush=True)\n"
        "task = asyncio.ensure_future(later())\nawait asyncio.sleep(0)"
    )
    request = kernel.send(code)
    kernel.finish(request)
    waiting = kernel.send("go.set(); await task")
    assert kernel.output(request)["content"]["text"] == "late\n"
    kernel.finish(waiting)


def test_user_expressions_give_values_and_errors(kernel: Kernel) -> None:
    kernel.run("x = 6")
    found = kernel.run("", user_expressions={"good": "x * 7", "bad": "1 / 0"}).reply["content"]["user_expressions"]
    assert found["good"]["data"]["text/plain"] == "42"
    assert (found["bad"]["status"], found["bad"]["ename"]) == ("error", "ZeroDivisionError")


def test_a_silent_cell_shows_no_result_and_does_not_count(kernel: Kernel) -> None:
    before = kernel.run("1").reply["content"]["execution_count"]
    assert kernel.run("2", silent=True).kinds() == []
    assert kernel.run("3", store_history=False).result == "3"
    assert kernel.run("4").reply["content"]["execution_count"] == before + 1


def test_an_error_aborts_what_is_queued_and_nothing_later(kernel: Kernel) -> None:
    requests = [kernel.send("print('go', flush=True); import time; time.sleep(3); 1 / 0"), *map(kernel.send, "234")]
    replies = [kernel.reply(request)["content"]["status"] for request in requests]
    assert replies == ["error", "aborted", "aborted", "aborted"]
    assert kernel.run("5").result == "5"


def test_an_error_aborts_nothing_of_another_client(kernel: Kernel) -> None:
    """And what is aborted tells nothing of the cell that failed."""
    failing = kernel.send("open('report.txt', 'w').close(); input(); 1 / 0", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=DEADLINE)
    queued, message = kernel.send("2"), kernel.client.session.msg
    other = message("execute_request", {"code": "3", "user_expressions": {"four": "4"}})
    other["header"]["session"] = "another client"
    last = message("comm_msg", {"comm_id": "none", "data": {}})
    for each in (other, last):
        kernel.client.shell_channel.send(each)
    while kernel.client.get_iopub_msg(timeout=DEADLINE)["parent_header"]["msg_id"] != last["msg_id"]:
        pass  # all have come
    kernel.client.input("")
    replies = [kernel.reply(request) for request in (failing, queued, other["msg_id"])]
    assert [reply["content"]["status"] for reply in replies] == ["error", "aborted", "ok"]
    assert "files" in replies[0]["metadata"]["kernelmcp"]
    assert "kernelmcp" not in replies[1]["metadata"]
    assert replies[2]["content"]["user_expressions"]["four"]["data"]["text/plain"] == "4"
    assert kernel.run("5").result == "5"


def test_a_queued_cell_runs_after_an_error_when_it_asked_for_that(kernel: Kernel) -> None:
    first, second = kernel.send("1 / 0", stop_on_error=False), kernel.send("2")
    assert [kernel.reply(request)["content"]["status"] for request in (first, second)] == ["error", "ok"]


def test_a_traceback_shows_the_line_of_the_cell_and_no_frame_of_ours(kernel: Kernel) -> None:
    ran = kernel.run("def broken():\n    return 1 / 0\nbroken()")
    traceback = "\n".join(ran.reply["content"]["traceback"])
    assert "broken" in traceback
    assert "kernelmcp_guest" not in traceback
    assert ran.error == "ZeroDivisionError: division by zero"


def test_a_syntax_error_is_an_error_of_the_cell(kernel: Kernel) -> None:
    ran = kernel.run("def f(:")
    assert ran.error.startswith("SyntaxError")
    assert ran.kinds() == ["error"]


def test_completion_and_inspection_know_live_variables(kernel: Kernel) -> None:
    kernel.run("def a_long_name(): 'says what it does'")
    kernel.client.complete("a_long")
    assert "a_long_name" in kernel.client.get_shell_msg(timeout=DEADLINE)["content"]["matches"]
    kernel.client.inspect("a_long_name", detail_level=1)
    found = kernel.client.get_shell_msg(timeout=DEADLINE)["content"]
    assert found["found"]
    assert "says what it does" in found["data"]["text/plain"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import collec", "collections"),
        ("from stat", "statistics"),
        ("import xml.e", "xml.etree"),
        ("import own_", "own_m"),
    ],
)
def test_names_of_modules_are_completed(kernel: Kernel, code: str, found: str) -> None:
    kernel.run("open('own_m.py', 'w').close()")
    kernel.client.complete(code)
    assert found in kernel.client.get_shell_msg(timeout=DEADLINE)["content"]["matches"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%pip -q install", "InvalidRequirement: no package was named"),
        (
            "%pip --no-color install -Uq --progress-bar off --timeout=5 --no-input",
            "InvalidRequirement: no package was named",
        ),
        ("!pip -q install --upgrade", "InvalidRequirement: no package was named"),
        ("%pip -q install --index-url x", "InvalidRequirement: pip install --index-url is not available here"),
        ("%pip -q download", "PackageError: pip download is not available"),
    ],
)
def test_options_of_pip_that_mean_nothing_here_are_accepted(kernel: Kernel, line: str, error: str) -> None:
    assert kernel.run(line).error.startswith(error)


def test_exit_and_sys_exit_end_the_cell_and_keep_the_session(kernel: Kernel) -> None:
    kernel.run("kept = 1")
    assert kernel.run("exit()").status == "ok"
    assert kernel.run("import sys; sys.exit(3)").error == "SystemExit: 3"
    assert kernel.run("kept").result == "1"


def test_magics_work(kernel: Kernel) -> None:
    assert "per loop" in kernel.run("%timeit -n2 -r1 1 + 1").text()
    assert "1 + 1" in kernel.run("%history").text()


def test_input_and_getpass_ask_the_client(kernel: Kernel) -> None:
    request = kernel.send("import getpass\ninput('name? ') + getpass.getpass('secret? ')", allow_stdin=True)
    for prompt, password, answer in (("name? ", False, "ada"), ("secret? ", True, "42")):
        asked = kernel.client.get_stdin_msg(timeout=DEADLINE)["content"]
        assert asked == {"prompt": prompt, "password": password}
        kernel.client.input(answer)
    assert kernel.finish(request).result == "'ada42'"


def test_input_says_so_when_the_client_has_none(kernel: Kernel) -> None:
    assert kernel.run("input()", allow_stdin=False).error.startswith("StdinNotImplementedError")


def test_a_comm_opened_by_a_cell_reaches_the_client_and_back(kernel: Kernel) -> None:
    code = (
        "import comm\nheard = []\nlink = comm.create_comm(target_name='t', data={'hello': 1})\n"
        "link.on_msg(lambda message: heard.append(message['content']['data']))"
    )
    opened = kernel.run(code).outputs[0]
    assert (opened["msg_type"], opened["content"]["data"]) == ("comm_open", {"hello": 1})
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {"a": 2}})
    kernel.client.shell_channel.send(message)
    assert kernel.run("heard").result == "[{'a': 2}]"


def test_a_widgets_callback_that_asks_the_host_is_told_to_do_it_in_a_cell(kernel: Kernel) -> None:
    code = (
        "import comm\nlink = comm.create_comm(target_name='t')\ndef hear(_):\n"
        "    try:\n        input()\n    except OSError as error:\n        print(error)\nlink.on_msg(hear)"
    )
    opened = kernel.run(code, allow_stdin=True).outputs[0]
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.shell_channel.send(message)
    assert (
        kernel.output(message["msg_id"])["content"]["text"] == "a widget's callback cannot do this: do it in a cell\n"
    )


def test_buffers_of_a_comm_go_both_ways(kernel: Kernel) -> None:
    code = (
        "import comm\nlink = comm.create_comm(target_name='t', buffers=[b'\\xff\\x00', memoryview(b'1234')[::2]])\n"
        "link.on_msg(lambda message: link.send('back', buffers=[bytes(each) * 2 for each in message['buffers']]))"
    )
    opened = kernel.run(code).outputs[0]
    assert [bytes(each) for each in opened["buffers"]] == [b"\xff\0", b"13"]
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.session.send(kernel.client.shell_channel.socket, message, buffers=[b"\xfe", b""])
    while (answer := kernel.client.get_iopub_msg(timeout=DEADLINE))["msg_type"] != "comm_msg":
        pass
    assert (answer["content"]["data"], [bytes(each) for each in answer["buffers"]]) == ("back", [b"\xfe\xfe", b""])


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print('snow \\u2603, rocket \\U0001f680')", "snow \u2603, rocket \U0001f680\n"),
        ("print('\\ud800 alone')", "\\ud800 alone\n"),
        ("import sys; _ = sys.stdout.buffer.write(b'\\xff\\n')", "\ufffd\n"),
        (
            "import io, sys; o = sys.stdout; own, o.buffer = o.buffer, io.BytesIO(); print('as ever'); o.buffer = own",
            "as ever\n",
        ),
        ("import sys; _ = [sys.stdout.buffer.write(bytes([each])) for each in 'é☃🚀'.encode()]", "é☃🚀"),
        (
            "import sys; out = sys.stdout.buffer.write; out(b'\\xe2'); print('then'); _ = out(b'end \\xe2')",
            "\ufffdthen\nend \ufffd",
        ),
        ("import os; _ = os.write(1, b'raw \\xfe\\n')", "raw \ufffd\n"),
        ("import os; _ = [os.write(1, bytes([each])) for each in 'é☃🚀'.encode()]", "é☃🚀"),
        (
            "import os; _ = os.write(1, b'\\xe2'); print('then'); _ = os.write(1, b'end \\xe2')",
            "\ufffdthen\nend \ufffd",
        ),
        ("print('nul \\0')", "nul \0\n"),
    ],
    ids=[
        "unicode",
        "lone surrogate",
        "invalid bytes",
        "another buffer",
        "bytes of characters",
        "beginnings of characters",
        "invalid bytes to the descriptor",
        "bytes of characters to the descriptor",
        "beginnings of characters to the descriptor",
        "nul",
    ],
)
def test_any_text_arrives_as_text(kernel: Kernel, code: str, shown: str) -> None:
    assert kernel.run(code).text() == shown


def test_a_long_text_that_is_not_ascii_is_printed_whole_and_costs_no_state(kernel: Kernel) -> None:
    ran = kernel.run("x = 1; print('\u65e5' * 5_000_000)")
    assert ran.status == "ok"
    assert ran.text().count("\u65e5") == 5_000_000
    assert kernel.run("x").result == "1"


def test_a_text_with_a_length_of_its_own_is_written_as_it_is(kernel: Kernel) -> None:
    code = "import sys\nclass Coloured(str):\n    def __len__(self): return 0\n_ = sys.stdout.write(Coloured('red'))"
    assert kernel.run(code).text() == "red"


def test_text_in_a_stream_of_the_cells_own_comes_with_the_cell(kernel: Kernel) -> None:
    wrap = "import io, sys; own = sys.stdout; sys.stdout = io.TextIOWrapper(own.buffer); print('here')"
    assert kernel.run(wrap).text() == "here\n"
    assert kernel.run("sys.stdout = own; own.reconfigure(encoding='utf-8'); print('next')").text() == "next\n"


def test_records_of_json_in_one_text_are_read_without_looking_at_the_rest_for_each(kernel: Kernel) -> None:
    kernel.run("""
        import json
        from unittest.mock import patch
        from kernelmcp_guest import nesting
        decoder = json.JSONDecoder()
        def read(text, at=0):
            with patch.object(nesting, "_is_too_deep", wraps=nesting._is_too_deep) as looked:
                while at < len(text):
                    _, at = decoder.raw_decode(text, at)
            return looked.call_count, at""")
    assert kernel.run("read('{}[[1]]' * 10_000)").result == "(2, 70000)"
    labels = """read('{"interval": "[0, 10)", "quote": "\\\\\\""}' * 20_000)"""
    assert kernel.run(labels).result == "(2, 760000)"
    kernel.run("""
        def look(text):
            for at, each in enumerate(text):
                try:
                    each in "[{" and decoder.raw_decode(text, at)
                except json.JSONDecodeError:
                    pass""")
    assert kernel.run("look('[x \"' + '[' * 20_000 + '\"]')").error == TOO_DEEP
    deep = "read('{}' * 10_000 + '[[]]{}' + '[' * 20_000, 20_000)"
    assert kernel.run(deep).error == TOO_DEEP


TOO_DEEP = "RecursionError: maximum recursion depth exceeded while decoding JSON"


@pytest.mark.parametrize(
    "text",
    [
        """'["]",' * 200_000""",
        """'{"]":' * 200_000""",
        r"""'["\\\\",' * 200_000""",
        r"""'["a\\"]]]",' * 200_000""",
        """'[' * 20_000""",
        """'[[],' * 11_000""",
    ],
)
def test_json_that_is_nested_too_deeply_is_an_error_whatever_its_strings_hold(kernel: Kernel, text: str) -> None:
    assert kernel.run(f"import json; json.loads({text})").error == TOO_DEEP


@pytest.mark.parametrize(
    "text",
    [
        """'[' + '[],' * 100_000 + '1]'""",
        """'[' * 7_000 + ']' * 7_000""",
        """'["' + '[' * 100_000 + '"]'""",
        r"""'["' + '\\\\[' * 50_000 + '"]'""",
    ],
)
def test_json_that_is_not_is_read(kernel: Kernel, text: str) -> None:
    code = f"import json\nclass Odd(str):\n    __hash__ = None\ntype(json.loads(Odd({text})))"
    assert kernel.run(code).result == "list"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("list(range(100_000))", ["[0, 1, 2,", "9, ... 99,980 of 100,000 items left out ..., 99990,", "99999]"]),
        (
            "{n: str(n) for n in range(1000)}",
            ["{0: '0', 1: '1',", "... 980 of 1,000 items left out ...", "999: '999'}"],
        ),
        ("{'deep': tuple(range(600))}", ["{'deep': (0,", "... 580 of 600 items left out ...", "599)}"]),
        (
            "[{'a': list(range(50))} for _ in range(600)]",
            ["[{'a': [0, 1, 2, ... 44 of 50 items left out ..., 47, 48, 49]},", "... 580 of 600 items left out ..."],
        ),
        ("[list(range(12))] * 501", ["[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0,"]),
        ("[list(range(13)), 1]", ["[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 1]"]),
        ("set(range(600))", ["... 590 of 600 items left out ...}"]),
        ("len(repr(list(range(600)))), [1, 2]", ["(2890, [1, 2])"]),
    ],
)
def test_a_large_collection_is_shown_by_its_size_and_its_ends(kernel: Kernel, code: str, shown: list[str]) -> None:
    text = " ".join((kernel.run(code).result or "").split())
    assert [part for part in shown if part not in text] == []
    assert len(text) < 1600


def test_context_variables_stay_from_cell_to_cell(kernel: Kernel) -> None:
    cells = {
        "import decimal, contextvars; decimal.getcontext().prec = 50": "50",
        "import asyncio; await asyncio.sleep(0); decimal.getcontext().prec = 40": "40",
        "asyncio.run(asyncio.sleep(0)); decimal.getcontext().prec = 30": "30",
        "_ = await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0)); decimal.getcontext().prec = 20": "20",
    }
    for code, precision in cells.items():
        kernel.run(code)
        assert kernel.run("decimal.getcontext().prec").result == precision
        assert kernel.run("await asyncio.sleep(0, decimal.getcontext().prec)").result == precision
        found = kernel.run("", user_expressions={"prec": "decimal.getcontext().prec"}).reply["content"]
        assert found["user_expressions"]["prec"]["data"]["text/plain"] == precision


def test_a_task_that_changes_its_context_changes_that_of_no_cell(kernel: Kernel) -> None:
    kernel.run(
        "import asyncio, decimal\ndecimal.getcontext().prec = 28\nfrom pyodide.ffi import run_sync\n"
        "async def own():\n    decimal.setcontext(decimal.Context(prec=5)); run_sync(asyncio.sleep(0.2))\n"
        "    await asyncio.sleep(0.1)\n    return decimal.getcontext().prec\n"
        "task = asyncio.ensure_future(own()); await asyncio.sleep(0)"
    )
    assert kernel.run("asyncio.run(asyncio.sleep(0.1)); decimal.getcontext().prec").result == "28"
    assert kernel.run("run_sync(asyncio.sleep(0.3)); await task, decimal.getcontext().prec").result == "(5, 28)"


def test_a_result_that_cannot_be_shown_is_an_error_and_a_display_in_the_middle_is_none(kernel: Kernel) -> None:
    kernel.run("class Broken:\n    def __repr__(self): raise ValueError('no')\nfrom IPython.display import display")
    assert kernel.run("Broken()").error == "ValueError: no"
    ran = kernel.run("display(Broken()); 'went on'")
    assert (ran.status, ran.kinds(), ran.result) == ("ok", ["error", "execute_result"], "'went on'")


def test_the_shell_has_a_kernel_that_knows_the_message_that_is_answered(kernel: Kernel) -> None:
    ran = kernel.run("get_ipython().kernel.get_parent()['header']['msg_id']")
    assert ran.result == repr(ran.reply["parent_header"]["msg_id"])
    assert kernel.run("get_ipython().get_parent()['header']['msg_type']").result == "'execute_request'"


def test_the_shells_kernel_knows_who_asked_on_which_channel_as_ipykernels_does(kernel: Kernel) -> None:
    session = kernel.client.session.session
    ran = kernel.run("k = get_ipython().kernel; k.get_parent('shell')['header']['session'], k._parent_ident['shell']")
    assert ran.result == repr((session, [session.encode()]))
    message = kernel.client.session.msg("kernel_info_request")
    kernel.client.control_channel.send(message)
    while kernel.client.get_control_msg(timeout=DEADLINE)["parent_header"].get("msg_id") != message["msg_id"]:
        pass
    ran = kernel.run("print(k.get_parent('control')['header']['msg_id'], k.get_parent()['msg_type'])")
    assert ran.text() == f"{message['msg_id']} execute_request\n"
    assert kernel.run("k._parent_ident['control']").result == repr([session.encode()])


def test_displays_are_sent_as_older_notebooks_do_it(kernel: Kernel) -> None:
    content = "{'data': {'text/plain': 'x'}, 'metadata': {}, 'transient': {'display_id': 'here'}}"
    send = "ip = get_ipython(); ip.kernel.session.send(ip.kernel.iopub_socket, %r, %s, parent=ip.parent_header)"
    ran = kernel.run("\n".join(send % (kind, content) for kind in ("display_data", "update_display_data")))
    assert ran.kinds() == ["display_data", "update_display_data"]
    assert ran.outputs[1]["content"]["transient"] == {"display_id": "here"}
    assert kernel.run(send % ("status", "{}")).error.startswith("ValueError: a sandbox sends no status")


ABSENT = {
    "%edit": "UsageError: there is no editor in the sandbox",
    "%store kept": "UsageError: variables are kept as long as the session",
    "import socket; socket.socket()": "OSError: the sandbox has no sockets: for HTTP use",
    "import socket; socket.create_connection(('localhost', 80))": "OSError: the sandbox has no sockets: for HTTP use",
    "import dbm": "ModuleNotFoundError: No module named 'dbm': Python for WebAssembly is built without it: keep data",
    "import shelve; shelve.open('x')": "ModuleNotFoundError: No module named 'dbm': Python for WebAssembly",
    "import hashlib; hashlib.scrypt": "AttributeError: module 'hashlib' has no attribute 'scrypt': this Python is",
}


@pytest.mark.parametrize("code", ABSENT, ids=ABSENT)
def test_what_a_sandbox_has_not_says_so_in_a_sentence_every_time(kernel: Kernel, code: str) -> None:
    for _ in range(2):
        ran = kernel.run(code)
        assert ran.error.startswith(ABSENT[code])
        assert not ran.state_lost


def test_the_guest_knows_no_path_of_the_host_and_no_disk_but_its_quota(kernel: Kernel) -> None:
    assert kernel.run("import sys; sys.executable, sys.orig_argv").result == "('python3', [''])"
    total, used, free = eval(kernel.run("import shutil; tuple(shutil.disk_usage('/workspace'))").result or "")
    assert (total, used + free) == (1024 * 2**20, total)


def test_cd_goes_back_to_where_the_session_began() -> None:
    with running_kernel() as new:
        assert new.run("import os\nos.environ['PWD'], str(_dh[0])").result == "('/workspace', '/workspace')"
        assert new.run("%cd /tmp\n%cd -\nos.getcwd()").result == "'/workspace'"


def test_pdb_after_an_error_is_for_who_can_answer(kernel: Kernel) -> None:
    ran = kernel.run("%pdb on\n1 / 0", allow_stdin=False)
    assert ran.error == "ZeroDivisionError: division by zero"
    assert ran.text("stderr").startswith("%pdb is off again: nobody can type into a debugger here")
    assert kernel.run("1 / 0", allow_stdin=False).text("stderr") == ""
    request = kernel.send("%pdb on\n1 / 0", allow_stdin=True)
    assert kernel.client.get_stdin_msg(timeout=DEADLINE)["content"]["prompt"] == "ipdb> "
    kernel.client.input("q")
    assert kernel.finish(request).error == "ZeroDivisionError: division by zero"
    kernel.run("%pdb off")


def test_rerun_runs_the_newest_input_again(kernel: Kernel) -> None:
    kernel.run("runs = 0")
    kernel.run("runs += 1; runs")
    assert kernel.run("%rerun").result == "2"
