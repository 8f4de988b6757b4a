"""The `structuredContent` of every tool, field for field as in the contract. Types only.

TypedDicts: they become the tools' output schemas, and constructing one costs nothing during a call.
"""

from typing import Annotated, Any, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from kernelmcp.config.models import Flavor
from kernelmcp.executions.execution import Status
from kernelmcp.sessions.life import PublicState as State

# Any JSON value, in a form that schema checkers accept as a statement.
JSON_TYPES = ("object", "array", "string", "number", "boolean", "null")
JsonValue = Annotated[Any, WithJsonSchema({"anyOf": [{"type": name} for name in JSON_TYPES]})]


class ErrorInfo(TypedDict):
    name: str
    value: str
    traceback: str
    error_code: NotRequired[str]
    """The error code of a failed installation."""


class OutputInfo(TypedDict):
    mime_types: list[str]
    uri: str


class Truncation(TypedDict):
    shown_chars: int
    total_chars: int
    uri: str


class ChangedFile(TypedDict):
    path: str
    size: int
    uri: str
    host_path: NotRequired[str]
    """For a file in a volume, if the client is on the same machine."""


class InstalledPackage(TypedDict):
    name: str
    version: str
    source: str


class PresentPackage(TypedDict):
    name: str
    version: str


class InstallFields(TypedDict):
    installed: list[InstalledPackage]
    already_present: list[PresentPackage]


class PendingApproval(TypedDict):
    server: str
    tool: str
    arguments: str


class CodeModeFields(TypedDict):
    """Of results where there are other servers, whose tools code can call."""

    tools_called: NotRequired[dict[str, int]]
    """Number of calls, by server.tool."""
    tokens_saved: NotRequired[int]
    """Estimate: characters of their results that were not shown, divided by four."""
    pending_approvals: NotRequired[list[PendingApproval]]
    """Calls that wait for the user."""


class ExecutionResult(CodeModeFields):
    """One execution: what it printed, gave and displayed."""

    session_id: str
    session_created: bool
    execution_id: str
    execution_count: int | None
    status: Status
    success: bool
    exit_code: int | None
    stdout: str
    stderr: str
    result: str | None
    return_value: NotRequired[JsonValue]
    error: ErrorInfo | None
    outputs: list[OutputInfo]
    outputs_dropped: int
    files_changed: list[ChangedFile]
    truncated: dict[str, Truncation] | None
    state_lost: bool
    restored: str | None
    """When the variables were saved that came back before this cell."""
    background: str | None
    """Output since the last result from tasks that outlived their cell."""
    execution_time_ms: float
    queued_ms: float
    installed: NotRequired[list[InstalledPackage]]
    """Only for a cell that does nothing but install packages, like `already_present`."""
    already_present: NotRequired[list[PresentPackage]]
    cursor: NotRequired[str]
    """While it runs: the position that `since` takes."""


class CancelResult(TypedDict):
    session_id: str
    execution_id: str | None
    cancelled: bool
    status: Status | None


class CreateSessionResult(TypedDict):
    session_id: str
    language: str
    flavor: Flavor
    created: bool
    expires_after_seconds: float
    replay: NotRequired["ReplayInfo"]
    forked_from: NotRequired[str]
    """The session whose variables and files it began with."""
    lost: NotRequired[list[str]]
    """With `forked_from`: what could not be brought along."""


class ReplayInfo(TypedDict):
    cells: int
    ended: int
    status: Status
    execution_id: str


class SessionInfo(TypedDict):
    session_id: str
    state: State
    language: str
    flavor: Flavor
    created_at: str
    last_used_at: str
    execution_count: int
    memory_mb: float
    workspace_bytes: int
    checkpoints: list["CheckpointInfo"]
    """The oldest first."""
    running: NotRequired[str]
    """The id of the execution that runs, or is the next one."""
    tools_called: NotRequired[dict[str, int]]
    """Present, like the next field, if it has called tools of other servers."""
    tokens_saved: NotRequired[int]


class CheckpointInfo(TypedDict):
    name: str
    created_at: str
    execution_count: int
    size_bytes: int


class ContractError(TypedDict):
    """Why a call was refused, and what to do."""

    error_code: str
    category: str
    severity: str
    message: str
    recovery_suggestions: list[str]
    context: dict[str, Any]


class SessionList(TypedDict):
    sessions: list[SessionInfo]
    total: int
    next_cursor: str | None


class InstallResult(InstallFields):
    """The outcome of one installation. While it runs, `status` is "running" and the lists are empty."""

    session_id: str
    execution_id: str
    status: Status
    duration_ms: float


class CheckpointResult(TypedDict):
    session_id: str
    checkpoint: str
    size_bytes: int
    kept: int
    """How many checkpoints the session has now."""


class RestoreResult(TypedDict):
    session_id: str
    checkpoint: str
    restored_at: str
    """When the checkpoint was made: variables and files are as they were then."""
    lost: list[str]
    """What did not come back."""


class StopResult(TypedDict):
    session_id: str
    stopped: bool


class DestroyResult(TypedDict):
    session_id: str
    destroyed: bool


class ResetResult(TypedDict):
    session_id: str
    variables_cleared: bool
    files_deleted: bool


class RuntimeInfo(TypedDict):
    name: str
    version: str | None
    description: str
    available: bool
    example: NotRequired[str]


class RuntimeList(TypedDict):
    runtimes: list[RuntimeInfo]


class FileInfo(TypedDict):
    path: str
    size: int
    modified_at: str


class PackageInfo(TypedDict):
    name: str
    version: str


class WorkspaceInfo(TypedDict):
    """A session's files, and its quota."""

    session_id: str
    path: str | None
    files: list[FileInfo]
    complete: bool
    file_count: int
    max_files: int
    total_bytes: int
    quota_bytes: int
    packages: list[PackageInfo]


class VolumeInfo(TypedDict):
    name: str
    path: str
    mode: str
    host_path: str | None


class VolumeList(TypedDict):
    workspace: str
    volumes: list[VolumeInfo]


class ReadResult(TypedDict):
    """A file, or a part of it."""

    session_id: str
    path: str
    size: int
    encoding: str
    content: str
    offset: int
    next_offset: int | None
    truncated: bool


class WriteResult(TypedDict):
    session_id: str
    path: str
    size: int
    encoding: str
