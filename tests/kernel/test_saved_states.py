"""The messages by which a kernel's state is saved and loaded: beside other clients' cells, and what a client is told
when the kernel cannot read the state."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from .conftest import running_kernel
from .driver import DEADLINE, Kernel


def ask(kernel: Kernel, kind: str, **content: Any) -> dict[str, Any]:
    """The content of the reply."""
    request = kernel.client.session.msg(kind, content)
    kernel.client.control_channel.send(request)
    while True:
        reply = kernel.client.get_control_msg(timeout=DEADLINE)
        if reply["parent_header"].get("msg_id") == request["msg_id"]:
            return reply["content"]


def save(kernel: Kernel, file: Path) -> dict[str, Any]:
    return ask(kernel, "save_state_request", file=str(file), max_bytes=10**9, how={"is_plain": True})


def load(kernel: Kernel, file: Path, size: int = 1, **saved: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"image": "", "mounts": [], "execution_count": 0, "others": [], **saved}
    return ask(kernel, "load_state_request", **content, parts=[{"file": str(file), "bytes": size}], reseed=False)


def test_a_state_has_what_the_cell_that_runs_leaves(tmp_path: Path) -> None:
    with running_kernel() as kernel:
        request = kernel.send("print('begun'); import time; time.sleep(0.3); x = 41")
        kernel.output(request)
        saved = save(kernel, tmp_path / "state")
        assert saved["status"] == "ok", saved
        assert kernel.finish(request).reply["content"]["status"] == "ok"
    with running_kernel() as other:
        chosen = {name: saved[name] for name in ("image", "mounts", "execution_count", "others")}
        loaded = load(other, tmp_path / "state", saved["bytes"], **chosen)
        assert loaded["status"] == "ok", loaded
        assert other.run("x + 1").result == "42"


GIVEN_BEFORE = '{"KEPT": "before", "OTHER": "before", "GONE": "before", "TERM": "before"}'
GIVEN_LATER = '{"KEPT": "before", "OTHER": "later"}'
ENVIRONMENTS = {
    "python": (
        "import os; os.environ.update(KEPT='mine', OTHER='mine', MINE='mine')",
        "import os; [os.environ.get(name) for name in ('KEPT', 'OTHER', 'GONE', 'MINE')]",
        "['mine', 'later', None, 'mine']",
    ),
    "javascript": (
        "%%javascript\nObject.assign(process.env, { KEPT: 'mine', OTHER: 'mine', MINE: 'mine' })",
        "%%javascript\nObject.assign({ GONE: null }, process.env)",
        "{ GONE: null, KEPT: 'mine', OTHER: 'later', MINE: 'mine' }",
    ),
}


def test_a_state_has_its_environment_but_for_what_the_settings_have_changed(tmp_path: Path) -> None:
    with running_kernel(KERNELMCP_ENV=GIVEN_BEFORE) as kernel:
        for begin, *_ in ENVIRONMENTS.values():
            kernel.run(begin)
        saved = save(kernel, tmp_path / "state")
    chosen = {name: saved[name] for name in ("bytes", "image", "mounts", "execution_count", "others")}
    with running_kernel(KERNELMCP_ENV=GIVEN_LATER) as other:
        assert load(other, tmp_path / "state", chosen.pop("bytes"), **chosen)["status"] == "ok"
        assert {name: other.run(look).result for name, (_, look, _) in ENVIRONMENTS.items()} == {
            name: expected for name, (*_, expected) in ENVIRONMENTS.items()
        }
        told = (
            "import subprocess; subprocess.run('echo $KEPT $OTHER $GONE $MINE', shell=True, capture_output=True).stdout"
        )
        assert other.run(told).result == r"b'mine later mine\n'"
    with running_kernel() as third:
        assert load(third, tmp_path / "state", saved["bytes"], **chosen)["status"] == "ok"
        assert third.run("import os; [os.environ.get(name) for name in ('GONE', 'TERM')]").result == "[None, 'dumb']"


def test_a_cell_that_runs_on_leaves_no_state_to_save(kernel: Kernel, tmp_path: Path) -> None:
    request = kernel.send("print('begun'); import time; time.sleep(1000)")
    kernel.output(request)
    assert save(kernel, tmp_path / "state")["reasons"] == ["a cell is running"]
    kernel.interrupt()
    assert kernel.finish(request).reply["content"]["ename"] == "KeyboardInterrupt"


SLEEPS_ON_A_MESSAGE = """
import time
from comm import create_comm
channel = create_comm(target_name='sleeper')
channel.on_msg(lambda message: (print("begun"), time.sleep(1000)))
"""


def test_what_runs_on_beside_cells_keeps_no_save_waiting(kernel: Kernel, tmp_path: Path) -> None:
    opened = kernel.run(SLEEPS_ON_A_MESSAGE).outputs[0]
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.shell_channel.send(message)
    kernel.output(message["msg_id"])
    assert save(kernel, tmp_path / "state")["reasons"] == ["a cell is running"]
    kernel.interrupt()
    assert kernel.run("1 + 1").result == "2"


def test_an_error_of_the_disk_has_its_number_and_says_nothing_about_the_state(kernel: Kernel, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "state")
    for file, number in ((tmp_path / "missing", errno.ENOENT), (link, errno.ELOOP)):
        found = load(kernel, file)
        assert (found["status"], found["errno"], found["is_passing"]) == ("error", number, True)


def test_a_state_that_is_none_is_not_passing(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"x")
    found = load(kernel, tmp_path / "state")
    assert (found["status"], found.get("is_passing", False)) == ("error", False)
    assert found["reasons"]
