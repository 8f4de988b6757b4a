"""Forwards the questions of cells (`input()`, `getpass()`) from their servers to the tabs of Lab.

A tab polls repeatedly, and is answered when the list has changed (or after a while): it then has the whole list,
whatever it has missed. Servers are watched only while a tab polls: a cell must not wait for a person who does not see
its question. Prompts come from the guests and are not inspected here.
"""

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from tornado import web

from kernelmcp.lab.control_client import Refused, answer
from kernelmcp.output.sanitize import as_dict, as_list

QUESTIONS = "kernelmcp_questions"
# Time limit of one tab's request; proxies end longer ones.
LONGEST_SECONDS = 25.0
# Longest pause between two requests of a tab.
TAB_SECONDS = 10.0
MAX_LINE_BYTES = 1024 * 1024
MAX_QUESTIONS = 100


class Questions:
    """The open questions of all servers, by their control sockets."""

    def __init__(self) -> None:
        self._asked: dict[Path, list[dict[str, Any]]] = {}
        self._watching: dict[Path, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._version = secrets.token_hex(8)
        self._requests = 0
        """Number of waiting requests of tabs."""
        self._last_request = float("-inf")
        """When the last request was answered."""

    def follow(self, sockets: set[Path]) -> None:
        """Watch these servers only. Watches none while no tab is open."""
        if not self._requests and time.monotonic() - self._last_request >= TAB_SECONDS:
            sockets = set()
        for socket in self._watching.keys() - sockets:
            self._watching.pop(socket).cancel()
        for socket in sockets:
            task = self._watching.get(socket)
            if task is None or task.done():
                self._watching[socket] = asyncio.create_task(self._watch(socket))

    def close(self) -> None:
        self.follow(set())

    @property
    def all(self) -> list[dict[str, Any]]:
        return [question for asked in self._asked.values() for question in asked][:MAX_QUESTIONS]

    async def news(self, since: str) -> dict[str, Any]:
        """The open questions, once they differ from the version that a tab has."""
        self._requests += 1
        try:
            async with asyncio.timeout(LONGEST_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._version != since)
        except TimeoutError:
            pass
        finally:
            self._requests -= 1
            self._last_request = time.monotonic()
        return {"version": self._version, "questions": self.all}

    async def answer(self, execution_id: str, text: str | None) -> None:
        """Answer a question. Raises `Refused` if it is no longer open."""
        for socket, asked in self._asked.items():
            if any(question["execution_id"] == execution_id for question in asked):
                await answer(socket, execution_id, text)
                return
        raise Refused("The cell is no longer asking.")

    async def _watch(self, socket: Path) -> None:
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_LINE_BYTES)
            writer.write(b'{"method": "watch"}\n')
            while line := await reader.readline():
                await self._note(socket, _parsed(line))
        except (OSError, ValueError, RecursionError):
            pass  # the server has ended, or the next look at the sessions watches it again
        finally:
            if writer is not None:
                writer.close()
            if self._asked.pop(socket, None):
                await self._note(socket, [])
                del self._asked[socket]

    async def _note(self, socket: Path, asked: list[dict[str, Any]]) -> None:
        async with self._changed:
            self._asked[socket] = asked
            self._version = secrets.token_hex(8)
            self._changed.notify_all()


def _parsed(line: bytes) -> list[dict[str, Any]]:
    return [
        {
            "execution_id": str(one.get("execution_id")),
            "session_id": str(one.get("session_id")),
            "prompt": str(one.get("prompt")),
            "password": one.get("password") is True,
            "choices": [str(choice) for choice in as_list(one.get("choices"))],
        }
        for one in map(as_dict, as_list(as_dict(json.loads(line)).get("questions")))
    ]


class QuestionsHandler(APIHandler):
    """PUT: the list, once it has changed. POST: an answer."""

    @web.authenticated
    async def put(self) -> None:
        known = as_dict(self.get_json_body()).get("version")
        self.finish(json.dumps(await self._questions.news(str(known))))

    @web.authenticated
    async def post(self) -> None:
        asked = as_dict(self.get_json_body())
        text = asked.get("text")
        try:
            await self._questions.answer(str(asked.get("execution_id")), text if isinstance(text, str) else None)
        except Refused as exc:
            raise web.HTTPError(409, str(exc)) from exc
        self.set_status(204)
        self.finish()

    @property
    def _questions(self) -> Questions:
        return self.settings[QUESTIONS]
