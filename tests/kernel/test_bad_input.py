"""Cells and messages that are meant to hurt: a clear error or a cut output, never a hang or a lost kernel."""

from typing import Any

import pytest

from .driver import DEADLINE, Kernel

BROKEN_DISPLAYS = {
    "repr raises": "class Broken:\n    def __repr__(self): raise ValueError('no')\nBroken()",
    "repr is no string": "class Broken:\n    def __repr__(self): return 1\nBroken()",
    "png raises": "class Broken:\n    def _repr_png_(self): raise ValueError('no')\nBroken()",
    "png is no picture": "class Broken:\n    def _repr_png_(self): return object()\nBroken()",
    "metadata is not JSON": "display({'text/plain': 'x'}, metadata={'a': {1, 2}, (1, 2): 3}, raw=True)",
    "data holds NaN": "display({'application/json': {'a': float('nan')}}, raw=True)",
    "data holds itself": "d = {}; d['d'] = d\ndisplay({'application/json': d}, raw=True)",
    "exception without str": "class Broken(Exception):\n    def __str__(self): raise ValueError('no')\nraise Broken",
}


@pytest.mark.parametrize("code", BROKEN_DISPLAYS.values(), ids=BROKEN_DISPLAYS.keys())
def test_a_broken_object_costs_its_own_output_at_most(kernel: Kernel, code: str) -> None:
    ran = kernel.run(f"from IPython.display import display\n{code}")
    assert not ran.state_lost
    assert ran.status == "ok" or "error" in ran.kinds()
    assert kernel.run("1 + 1").result == "2"


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


@pytest.mark.parametrize(
    "content",
    [{}, {"code": 1}, {"code": "1", "user_expressions": []}, {"code": None}, {"code": "1", "silent": "no"}],
    ids=["empty", "code is a number", "expressions are a list", "code is null", "silent is text"],
)
def test_a_malformed_request_leaves_the_kernel_usable(kernel: Kernel, content: dict[str, Any]) -> None:
    content |= {"stop_on_error": False}
    kernel.client.shell_channel.send(kernel.client.session.msg("execute_request", content))
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
    kernel.wait_until_busy(request)
    kernel.interrupt()
    assert kernel.run("1 + 1").result == "2"
