"""Cells and messages that are meant to hurt: a clear error or a cut output, never a hang or a lost kernel."""

from contextlib import suppress
from queue import Empty
from typing import Any

import pytest

from .driver import DEADLINE, Kernel, Message

CLASS = "class Broken:\n    def "
# A cell, the outputs that come of it, and what one of them says.
BROKEN_DISPLAYS = {
    "repr raises": (f"{CLASS}__repr__(self): raise ValueError('no')\nBroken()", ["error"], "'evalue': 'no'"),
    "repr is no string": (f"{CLASS}__repr__(self): return 1\nBroken()", ["error"], "__repr__ returned non-string"),
    "png raises": (
        f"{CLASS}_repr_png_(self): raise ValueError('no')\nBroken()",
        ["error", "execute_result"],
        "'evalue': 'no'",
    ),
    "png is no picture": (
        f"{CLASS}_repr_png_(self): return object()\nBroken()",
        ["stderr", "execute_result"],
        "FormatterWarning: image/png",
    ),
    "metadata is not JSON": (
        "display({'text/plain': 'x'}, metadata={'a': {1, 2}, (1, 2): 3}, raw=True)",
        ["display_data"],
        "this object cannot be shown: TypeError: keys must be",
    ),
    "data holds NaN": ("display({'application/json': {'a': float('nan')}}, raw=True)", ["display_data"], "'NaN'"),
    "data holds itself": (
        "d = {}; d['d'] = d\ndisplay({'application/json': d}, raw=True)",
        ["display_data"],
        "this object cannot be shown: ValueError: Circular reference",
    ),
    "exception without str": (
        "class Broken(Exception):\n    def __str__(self): raise ValueError('no')\nraise Broken",
        ["error"],
        "str() of the exception raised ValueError",
    ),
}


@pytest.mark.parametrize(("code", "outputs", "text"), BROKEN_DISPLAYS.values(), ids=BROKEN_DISPLAYS.keys())
def test_a_broken_object_costs_its_own_output_at_most(kernel: Kernel, code: str, outputs: list[str], text: str) -> None:
    ran = kernel.run(f"from IPython.display import display\n{code}")
    assert (ran.kinds(), ran.state_lost) == (outputs, False)
    assert text in str([output["content"] for output in ran.outputs])
    assert ran.status == ("error" if "error" in outputs else "ok")
    assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize("code", ["raise ValueError('x' * 25_000_000)", "1 / 0", "%edit", "1 +"])
def test_each_error_of_a_reply_is_an_output_too_once(kernel: Kernel, code: str) -> None:
    ran = kernel.run(code)
    errors = [output["content"] for output in ran.outputs if output["msg_type"] == "error"]
    assert errors == [{name: ran.reply["content"][name] for name in ("ename", "evalue", "traceback")}]
    assert "UsageError" not in ran.text("stderr")


def test_a_five_megabyte_cell_runs(kernel: Kernel) -> None:
    assert kernel.run(f"len('{'x' * 5_000_000}')").result == "5000000"


def test_nul_characters_in_code_are_a_syntax_error(kernel: Kernel) -> None:
    assert kernel.run("x = '\0'").error.startswith("SyntaxError")


def test_twenty_thousand_prints_arrive_whole_and_in_order(kernel: Kernel) -> None:
    expected = "".join(f"{i}\n" for i in range(20_000))
    assert kernel.run("for i in range(20_000): print(i)").text() == expected


def test_twenty_megabytes_arrive_whole_and_leave_no_memory_behind(kernel: Kernel) -> None:
    text = kernel.run("for i in range(20): print('x' * 10**6)").text()
    assert text == ("x" * 10**6 + "\n") * 20
    assert kernel.process.memory_info().rss < 300e6


def test_one_print_of_many_megabytes_is_cut_into_messages_between_characters(kernel: Kernel) -> None:
    assert kernel.run("print('\U0001f680' * 10**6)").text() == "\U0001f680" * 10**6 + "\n"


def test_too_many_outputs_are_dropped_counted_and_said(kernel: Kernel) -> None:
    ran = kernel.run("from IPython.display import display\nfor i in range(30_000): display(i)")
    assert ran.kinds().count("display_data") == 10_000
    assert "20,000 more outputs of this cell were dropped" in ran.text("stderr")
    assert kernel.process.memory_info().rss < 400e6


def test_a_picture_over_the_limit_of_a_message_is_replaced_by_a_note(kernel: Kernel) -> None:
    ran = kernel.run("from IPython.display import display\ndisplay({'text/plain': 'x' * 60_000_000}, raw=True)")
    assert "cannot be shown" in ran.outputs[0]["content"]["data"]["text/plain"]


NOT_TEXT = "ValueError: the code of an execute_request must be text"
NOT_AN_OBJECT = "ValueError: the user_expressions of an execute_request must be an object"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"code": 1}, NOT_TEXT),
        ({"code": None}, NOT_TEXT),
        ({"code": ["1"]}, NOT_TEXT),
        ({"code": "1", "user_expressions": ["x"]}, NOT_AN_OBJECT),
        ({"code": "1", "user_expressions": "x"}, NOT_AN_OBJECT),
        ({"code": "1", "silent": "no"}, None),  # as in ipykernel, whatever is true is true
        ({"code": "1", "user_expressions": None}, None),
    ],
    ids=str,
)
def test_a_malformed_request_is_answered_with_what_is_wrong_about_it(
    kernel: Kernel, content: dict[str, Any], error: str | None
) -> None:
    request = kernel.client.session.msg("execute_request", {**content, "stop_on_error": False})
    kernel.client.shell_channel.send(request)
    ran = kernel.finish(request["msg_id"])
    assert (ran.status, ran.error) == (("error", error) if error else ("ok", "None: None"))
    assert kernel.run("1 + 1").result == "2"


def test_a_request_without_code_leaves_the_kernel_usable(kernel: Kernel) -> None:
    """ipykernel logs it, and answers nothing."""
    kernel.client.shell_channel.send(kernel.client.session.msg("execute_request", {"stop_on_error": False}))
    assert kernel.run("1 + 1").result == "2"


def test_a_subshell_is_refused_in_words(kernel: Kernel) -> None:
    kernel.client.control_channel.send(kernel.client.session.msg("create_subshell_request", {}))
    reply = kernel.client.get_control_msg(timeout=DEADLINE)["content"]
    assert (reply["status"], reply["ename"]) == ("error", "NotImplementedError")


def test_a_payload_of_the_wrong_shape_still_gets_a_reply(kernel: Kernel) -> None:
    ran = kernel.run("get_ipython().payload_manager.write_payload({'source': []}, single=False)")
    assert (ran.status, ran.reply["content"]["payload"]) == ("ok", [])


def test_a_completion_that_never_ends_is_interrupted(kernel: Kernel) -> None:
    kernel.run("class Endless:\n    def __dir__(self):\n        while True: pass\nendless = Endless()")
    request = kernel.client.complete("endless.")
    replies: list[Message] = []
    while not replies:
        kernel.interrupt()  # again, because one that comes before it has begun is for nothing
        with suppress(Empty):
            replies.append(kernel.client.get_shell_msg(timeout=1))
    assert replies[0]["parent_header"]["msg_id"] == request
    assert kernel.run("1 + 1").result == "2"
