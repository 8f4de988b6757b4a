"""What a client is told when a kernel cannot read the state that it is to load."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from .driver import DEADLINE, Kernel


def load(kernel: Kernel, file: Path) -> dict[str, Any]:
    """The content of the reply."""
    content = {"parts": [{"file": str(file), "bytes": 1}], "image": "", "mounts": [], "execution_count": 0}
    request = kernel.client.session.msg("load_state_request", {**content, "others": [], "reseed": False})
    kernel.client.control_channel.send(request)
    while True:
        reply = kernel.client.get_control_msg(timeout=DEADLINE)
        if reply["parent_header"].get("msg_id") == request["msg_id"]:
            return reply["content"]


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
