"""One execution's use of tools of other MCP servers: its calls, their results, and pending approvals.

Written by `code_mode`. Must not know servers, policy or MCP.
"""

import copy
import hashlib
import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from kernelmcp.cells.cell import Outputs
from kernelmcp.output.sanitize import clean, clean_json

Outcome = Literal["ok", "error", "denied", "timeout", "unavailable", "limit", "cancelled"]
# Calls that a result names, and that are kept for reading.
MAX_NAMED = 50
# Scripts of the shell of one execution that are logged. A loop of them must not displace the other calls.
MAX_SCRIPTS = 100
MAX_LOGGED = 200
# The guest chooses the names of a call's arguments.
MAX_NAMES = 30
MAX_NAME_CHARS = 64
# Cost for a model: about four characters per token.
CHARS_PER_TOKEN = 4


@dataclass(slots=True, eq=False)
class ToolCallRecord:
    """One call, as the audit and the model see it: names and a hash of its arguments, no values."""

    principal: str
    session_id: str
    execution_id: str
    server: str
    tool: str
    arguments: dict[str, Any] | None
    """None once it is sealed."""
    arguments_size: int
    """Bytes of JSON."""
    decision: str = "refuse"
    """`allow`, `ask` or `deny` by the policy; `refuse` if the call was refused before that."""
    rule: str = ""
    """The reason for the decision: a rule's pattern, a setting, or a limit."""
    approved: str | None = None
    """The person's answer."""
    outcome: Outcome = "error"
    size: int = 0
    """Size of the result in bytes of JSON."""
    time: float = field(default_factory=time.time)
    ms: float = 0.0
    names: list[str] = field(default_factory=list[str])
    sha256: str = ""
    values: Any = None
    """Set if the settings require values in the audit."""

    def seal(self, *, keep_values: bool = False) -> None:
        """Replace the arguments by names and a hash. Takes long for large ones: call it in a thread."""
        if (arguments := self.arguments) is None:
            return
        text = json.dumps(arguments, sort_keys=True, default=str)
        self.seal_without_hash()
        self.sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if keep_values:
            self.values = _values(arguments)

    def seal_without_hash(self) -> None:
        """Remove the arguments, whatever their size, at once."""
        if self.arguments is not None:
            self.names = [_name(name) for name in islice(self.arguments, MAX_NAMES)]
            self.arguments = None

    def to_dict(self) -> dict[str, Any]:
        """Requires that it is sealed."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds"),
            "principal": self.principal,
            "session": self.session_id,
            "execution": self.execution_id,
            "server": self.server,
            "tool": self.tool,
            "decision": self.decision,
            "rule": self.rule,
            "argument_names": self.names,
            "arguments_sha256": self.sha256,
            "outcome": self.outcome,
            "size": self.size,
            "ms": round(self.ms, 1),
        }
        if self.approved is not None:
            found["approved"] = self.approved
        if self.values is not None:
            found["arguments"] = self.values
        return found


def _values(arguments: dict[str, Any]) -> Any:
    try:
        return clean_json(arguments)
    except ValueError:
        return "(nested too deeply)"


def _name(text: str) -> str:
    shown = clean(text)[:MAX_NAME_CHARS]
    return shown if shown.isprintable() else repr(shown)[:MAX_NAME_CHARS]


class ToolCalls:
    """The tool use of one execution."""

    def __init__(self) -> None:
        self.made = 0
        """Number of requested calls, including refused ones."""
        self.called: Counter[str] = Counter()
        """Calls that reached a server, by `server.tool`."""
        self.result_bytes = 0
        self.result_chars: Counter[str] = Counter()
        """By server: characters of results that a model would have read if it had called the tools itself."""
        self.seconds = 0.0
        """Duration of all calls together."""
        self.log: deque[ToolCallRecord] = deque(maxlen=MAX_LOGGED)
        self.refused = 0
        """Calls refused before the policy was applied."""

        self.scripts = 0
        """Scripts of the shell that were denied, or about which somebody was asked."""

    @property
    def tools_called(self) -> dict[str, int]:
        return dict((+self.called).most_common(MAX_NAMED))

    def to_json(self) -> str:
        """The newest calls, as the audit has them. Blocking: it may have to process large arguments."""
        # Copies: the audit decides whether values are kept, and it may not have processed the newest calls yet.
        calls = [copy.copy(call) for call in list(self.log)]
        for call in calls:
            call.seal()
            call.values = None
        return json.dumps({"made": self.made, "refused": self.refused, "calls": [call.to_dict() for call in calls]})

    def tokens_saved(self, outputs: Outputs, budget_chars: int) -> int:
        """Estimate of the tokens of results that stayed in the kernel, because less was shown."""
        shown = min(budget_chars, outputs.stdout.total_chars + outputs.stderr.total_chars + outputs.result_chars)
        return max(0, self.result_chars.total() - shown) // CHARS_PER_TOKEN

    def tokens_saved_by_server(self, outputs: Outputs, budget_chars: int) -> dict[str, int]:
        """The same estimate, divided among the servers."""
        saved, total = self.tokens_saved(outputs, budget_chars), self.result_chars.total()
        return {server: saved * chars // total for server, chars in self.result_chars.items() if chars}
