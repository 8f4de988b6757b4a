"""Shows the questions of cells to watchers (JupyterLab): lines of input (`input()`, `getpass()`), and approvals of
calls to tools of other servers.

Level-triggered: a watcher gets the whole list of open questions after each change, so it cannot miss one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from kernelmcp.executions.approvals import CHOICES, Approval, Approvals, answer_of, question
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.questions import Question, Questions

# Simultaneous JupyterLab watchers; more indicates a mistake.
MAX_WATCHERS = 20
CLOSED = "JupyterLab was closed"


class AskedInLab:
    """The open questions of one server's executions. All methods run in the event loop."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Event] = set()
        self._open: dict[str, Execution] = {}
        self._approvals: dict[str, tuple[Execution, Approvals, Approval]] = {}
        """Calls that await approval, by an id that we generate."""

    def offer(self, execution: Execution) -> None:
        """Let a new execution ask here if anybody watches."""
        if self._watchers:
            execution.questions = Questions(lambda questions: self._changed(execution, questions))

    def offer_approvals(self, execution: Execution) -> None:
        """Register an execution, a person's too, that is about to ask for approval of a tool call
        (`Broker.on_approval`)."""
        if not self._watchers:
            return
        approvals = execution.approvals = execution.approvals or Approvals()
        if not any(isinstance(each, _Shown) for each in approvals.on_change):
            approvals.on_change.append(_Shown(self, execution))

    def approvals_changed(self, execution: Execution, approvals: Approvals) -> None:
        for key, (asking, *_) in list(self._approvals.items()):
            if asking is execution:
                del self._approvals[key]
        approval = approvals.open
        if approval is not None and not self._watchers and not approvals.has_client:
            approvals.give_up(approval, CLOSED)  # which opens the next one
        elif approval is not None and approval.address is None:  # which only a client opens
            self._approvals[f"{execution.id}/{approval.number}"] = execution, approvals, approval
        for event in self._watchers:
            event.set()

    def watch(self) -> asyncio.Event | None:
        """Return an event that is set when the list has changed, or None if there are too many watchers."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        event = asyncio.Event()
        event.set()
        self._watchers.add(event)
        return event

    def unwatch(self, event: asyncio.Event) -> None:
        """Remove a watcher. When the last one has gone, close the open questions that no client asks."""
        self._watchers.discard(event)
        if not self._watchers:
            for execution in list(self._open.values()):
                if execution.questions is not None:
                    self._changed(execution, execution.questions)
            for _, approvals, approval in list(self._approvals.values()):
                if not approvals.has_client:
                    approvals.give_up(approval, CLOSED)

    def questions(self) -> list[dict[str, Any]]:
        """The open questions, as JSON."""
        asked = [
            {
                "execution_id": key,
                "session_id": execution.session_id,
                "prompt": question(execution.session_id, execution.code, approval),
                "password": False,
                "choices": list(CHOICES),
            }
            for key, (execution, _, approval) in self._approvals.items()
        ]
        return asked + [
            {
                "execution_id": _line(execution, execution.questions.open),
                "session_id": execution.session_id,
                "prompt": execution.questions.open.prompt,
                "password": execution.questions.open.is_password,
                "choices": [],
            }
            for execution in self._open.values()
            if execution.questions is not None and execution.questions.open is not None
        ]

    def answer(self, asked: str, text: str | None) -> bool:
        """Answer a question, by its `execution_id` in the list; None is Ctrl-D. False if it is no longer open."""
        if (found := self._approvals.get(asked)) is not None:
            _, approvals, approval = found
            approvals.reply(approval, answer_of(text))
            return True
        execution = self._open.get(asked.partition("/")[0])
        if execution is None or (questions := execution.questions) is None or (question := questions.open) is None:
            return False
        if asked != _line(execution, question):  # an earlier one of its cell
            return False
        questions.reply(question, text)
        return True

    def _changed(self, execution: Execution, questions: Questions) -> None:
        question = questions.open
        if question is not None and not self._watchers and (question.is_password or not questions.has_client):
            questions.reply(question, None, CLOSED)  # which calls this again
        elif question is not None:
            self._open[execution.id] = execution
        else:
            self._open.pop(execution.id, None)
        for event in self._watchers:
            event.set()


def _line(execution: Execution, question: Question) -> str:
    """The name of a question: a late answer must not reach the next one."""
    return f"{execution.id}/line-{question.number}"


@dataclass(frozen=True, eq=False)
class _Shown:
    """Reports changes of one execution's approvals (`Approvals.on_change`)."""

    asked: AskedInLab
    execution: Execution

    def __call__(self, approvals: Approvals) -> None:
        self.asked.approvals_changed(self.execution, approvals)
