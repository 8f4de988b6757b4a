"""`%checkpoint` and `%restore` as the kernel process handles them: here the test is the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import running_kernel
from .driver import Kernel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel as a server starts it."""
    sandbox = tmp_path_factory.mktemp("served") / "sandbox"
    with running_kernel(KERNELMCP_SANDBOX_DIRECTORY=str(sandbox)) as kernel:
        yield kernel


def asked(kernel: Kernel, request: str) -> dict[str, Any]:
    """What a running cell asks."""
    while (message := kernel.output(request))["msg_type"] != "past_request":
        pass
    return message["content"]


def answer(kernel: Kernel, **content: Any) -> None:
    kernel.client.control_channel.send(kernel.client.session.msg("past_reply", content))


@pytest.mark.parametrize(
    ("cell", "meant"),
    [
        ("%checkpoint", {"what": "checkpoint", "name": None}),
        (" %checkpoint \t a-b \n", {"what": "checkpoint", "name": "a-b"}),
        ("%restore cell-17", {"what": "restore", "name": "cell-17"}),
        ("%restore a b", {"what": "restore", "name": "a b"}),
    ],
)
def test_the_server_is_asked_and_its_answer_is_shown(served: Kernel, cell: str, meant: dict[str, Any]) -> None:
    request = served.send(cell)
    assert asked(served, request) == meant
    answer(served, status="ok", text="<b>done</b>")
    ran = served.finish(request)
    assert (ran.status, ran.text()) == ("ok", "<b>done</b>\n")


def test_a_refusal_is_an_error_of_the_cell(served: Kernel) -> None:
    served.run("kept = 1")
    request = served.send("%restore a")
    asked(served, request)
    answer(served, status="error", text="there is none")
    assert served.finish(request).error == "NoCheckpoint: there is none"
    assert served.run("kept").result == "1"


@pytest.mark.parametrize("names_it", [True, False])
def test_an_interrupt_ends_the_waiting_of_the_cell_that_it_names(served: Kernel, names_it: bool) -> None:
    request = served.send("%checkpoint")
    asked(served, request)
    metadata = {"kernelmcp": {"msg_id": request if names_it else "another"}}
    served.client.control_channel.send(served.client.session.msg("interrupt_request", {}, metadata=metadata))
    answer(served, status="error", text="answered")
    assert served.finish(request).error == f"NoCheckpoint: {'interrupted' if names_it else 'answered'}"


def test_an_interrupt_ends_the_waiting_and_a_late_answer_is_nobodys(served: Kernel) -> None:
    request = served.send("%checkpoint")
    asked(served, request)
    served.interrupt()
    assert served.finish(request).error == "NoCheckpoint: interrupted"
    answer(served, status="ok", text="late", is_left=True)
    answer(served)
    assert served.run("1 + 1").result == "2"


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\n%checkpoint a",
        "%checkpoint a\nx = 1",
        "get_ipython().run_line_magic('restore', 'a')",
        "get_ipython().run_cell('%checkpoint a')",
        "%%time\n%checkpoint a",
    ],
)
def test_code_cannot_ask(served: Kernel, code: str) -> None:
    ran = served.run(code)
    assert "past_request" not in ran.kinds()
    shown = [output["content"].get("evalue") for output in ran.outputs if output["msg_type"] == "error"]
    assert any("%checkpoint or %restore must be the cell's only line" in (text or "") for text in shown)


def test_a_silent_request_is_no_cell(served: Kernel) -> None:
    ran = served.run("%checkpoint a", silent=True)
    assert ran.status == "error"
    assert "past_request" not in ran.kinds()


def test_without_a_server_there_are_no_checkpoints(kernel: Kernel) -> None:
    ran = kernel.run("%checkpoint a")
    assert ran.error.startswith("NoCheckpoint: checkpoints belong to the sessions of a kernelmcp server")
    assert "past_request" not in ran.kinds()
