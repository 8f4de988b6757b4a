"""Asks a person for the values of `${NAME}` in an upstream's settings, which the environment lacks.

They pass through neither the client nor the model: a form on a page of this machine takes them. The upstream keeps them
in memory, for itself.
"""

from collections.abc import Sequence
from contextlib import suppress
from html import escape

import anyio
import anyio.from_thread
import anyio.lowlevel

from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.logins.browser_login import Show
from kernelmcp.upstreams.logins.local_page import Fields, LocalPage

SECONDS = 600.0
FORM = """\
<h1>The MCP server {server}</h1>
<p>Its settings name variables that have no value. kernelmcp keeps what you enter until it ends, for this MCP
server only: no code in the sandbox and no model sees it.
<form method="post" autocomplete="off">{inputs}<p><button>Save</button></form>"""
INPUT = '<p><label>{name}<br><input type="password" name="{name}" required></label>'
SAVED = "<p>Saved. This page can be closed."


async def ask_for_values(server: str, names: Sequence[str], show: Show) -> dict[str, str]:
    """The values of these variables. Raises `UpstreamError` if nobody gives them in time, and what `show` raises."""
    send, receive = anyio.create_memory_object_stream[dict[str, str]](1)
    token = anyio.lowlevel.current_token()

    def answer(values: dict[str, str]) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError):  # a second one is dropped
            send.send_nowait(values)

    def received(fields: Fields) -> str | None:
        values = {name: fields.get(name, "") for name in names}
        if not all(values.values()) or any("\0" in value for value in values.values()):
            return form
        anyio.from_thread.run_sync(answer, values, token=token)
        return SAVED

    form = FORM.format(server=escape(server), inputs="".join(INPUT.format(name=name) for name in names))
    with send, receive, LocalPage(received, form) as page:
        await show(page.address)
        with anyio.move_on_after(SECONDS):
            return await receive.receive()
    raise UpstreamError("ServerUnavailable", f"{server}: nobody has entered the values of {', '.join(names)}")
