"""What cells ask of a person (`input()`, `getpass()`), for whoever watches: a JupyterLab that shows it.

Level-triggered: a watcher gets the whole list of open questions each time it has changed, so none can be missed.
"""

import asyncio
from typing import Any

from kernelmcp.executions.execution import Execution
from kernelmcp.executions.questions import Questions

# Of JupyterLabs at once; more is a mistake.
MAX_WATCHERS = 20


class AskedInLab:
    """The open questions of one server's executions. All methods run in the event loop."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Event] = set()
        self._open: dict[str, Execution] = {}

    def offer(self, execution: Execution) -> None:
        """A new execution may ask here, if anybody watches (`Registry.on_submit`)."""
        if self._watchers:
            execution.questions = Questions(lambda questions: self._changed(execution, questions))

    def watch(self) -> asyncio.Event | None:
        """An event that is set when the list has changed; None when there are too many watchers."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        event = asyncio.Event()
        event.set()
        self._watchers.add(event)
        return event

    def unwatch(self, event: asyncio.Event) -> None:
        """When nobody watches any more, nobody answers what is open."""
        self._watchers.discard(event)
        if not self._watchers:
            for execution in list(self._open.values()):
                self.answer(execution.id, None)

    def questions(self) -> list[dict[str, Any]]:
        """What is asked now, as JSON."""
        return [
            {
                "execution_id": execution.id,
                "session_id": execution.session_id,
                "prompt": execution.questions.open.prompt,
                "password": execution.questions.open.is_password,
            }
            for execution in self._open.values()
            if execution.questions is not None and execution.questions.open is not None
        ]

    def answer(self, execution_id: str, text: str | None) -> bool:
        """Answer the question of an execution; None is Ctrl-D. False when nothing is asked there any more."""
        execution = self._open.get(execution_id)
        questions = execution.questions if execution is not None else None
        if questions is None or questions.open is None:
            return False
        questions.reply(questions.open, text)
        return True

    def _changed(self, execution: Execution, questions: Questions) -> None:
        if questions.open is not None:
            self._open[execution.id] = execution
        else:
            self._open.pop(execution.id, None)
        for event in self._watchers:
            event.set()
