"""Our extension for Jupyter Server: it watches sessions and handles requests for them."""

import asyncio
from pathlib import Path
from typing import Any

from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from jupyter_server_ydoc.handlers import YDocWebSocketHandler

from kernelmcp.lab import page_policy
from kernelmcp.lab.connections import BrowserConnection
from kernelmcp.lab.descriptors import Descriptors
from kernelmcp.lab.handlers import HANDLERS, WATCH
from kernelmcp.lab.names import Names
from kernelmcp.lab.open_questions import QUESTIONS, Questions, QuestionsHandler
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.shared.history import History
from kernelmcp.lab.shared.stores import HISTORIES
from kernelmcp.lab.watch import Watch

SETTINGS = "kernelmcp_lab"


def points() -> list[dict[str, Any]]:
    return [{"module": __name__}]


def load(app: Any) -> None:
    page_policy.install()
    # The inherited check returns True: a page of any other site (or port) could join with this browser's cookie.
    handler: Any = YDocWebSocketHandler
    handler.check_origin = WebSocketMixin.check_origin
    ours: dict[str, Any] = app.web_app.settings[SETTINGS]
    state, runtime_root, sessions = (Path(ours[name]) for name in ("state", "runtime_root", "sessions"))
    persons = Persons(state / "persons.json")
    BrowserConnection.persons = persons
    History.file = state / HISTORIES
    names = Names(state / "names.json", Path(app.root_dir))
    app.web_app.settings[QUESTIONS] = questions = Questions()
    descriptors = Descriptors(runtime_root, sessions)
    app.web_app.settings[WATCH] = watch = Watch(app, descriptors, names, persons, questions)
    base = app.web_app.settings["base_url"]
    app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, pattern), handler)
            for pattern, handler in (*HANDLERS, *page_policy.NEEDLESS, (r"/kernelmcp/questions", QuestionsHandler))
        ],
    )
    app.io_loop.add_callback(lambda: setattr(app, "kernelmcp_watching", asyncio.ensure_future(watch.run())))


# The names that Jupyter Server requires.
_jupyter_server_extension_points = points
_load_jupyter_server_extension = load
