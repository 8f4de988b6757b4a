"""What a client reads on iopub: from both threads of the kernel process, until its end."""

from __future__ import annotations

from .driver import DEADLINE, Kernel

CHARACTERS = 5_000_000


def test_requests_on_control_have_their_status_while_a_cell_runs(own_kernel: Kernel) -> None:
    cell = own_kernel.send("print('runs')\nwhile True: pass")
    own_kernel.output(cell)
    session, channel = own_kernel.client.session, own_kernel.client.control_channel
    requests = [session.msg("kernel_info_request", {}) for _ in range(3)]
    for request in requests:
        channel.send(request)
    found: dict[str, list[str]] = {request["msg_id"]: [] for request in requests}
    while any(len(states) < 2 for states in found.values()):
        message = own_kernel.client.get_iopub_msg(timeout=DEADLINE)
        if message["msg_type"] == "status" and message["parent_header"]["msg_id"] in found:
            found[message["parent_header"]["msg_id"]].append(message["content"]["execution_state"])
    assert list(found.values()) == [["busy", "idle"]] * 3
    own_kernel.interrupt()
    assert own_kernel.finish(cell).status == "error"


def test_all_output_arrives_when_the_kernel_is_shut_down_after_a_reply(own_kernel: Kernel) -> None:
    cell = own_kernel.send(f"print('x' * {CHARACTERS}, end='')")
    own_kernel.reply(cell)
    own_kernel.client.shutdown()
    reply = own_kernel.client.get_control_msg(timeout=DEADLINE)
    assert reply["msg_type"] == "shutdown_reply"
    characters, states = 0, list[str]()
    while characters < CHARACTERS or len(states) < 2:
        message = own_kernel.client.get_iopub_msg(timeout=DEADLINE)
        if message["msg_type"] == "stream":
            characters += len(message["content"]["text"])
        elif message["msg_type"] == "status" and message["parent_header"]["msg_id"] == reply["parent_header"]["msg_id"]:
            states.append(message["content"]["execution_state"])
    assert (characters, states) == (CHARACTERS, ["busy", "idle"])
