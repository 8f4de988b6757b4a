"""Requests arrive one at a time and run here, in the main thread; two more threads read the pipes meanwhile."""

from __future__ import annotations

import base64
import os
import queue
import select
import struct
import threading
from typing import TYPE_CHECKING

from kernelmcp_shell.archives.gunzip_command import make_gunzip
from kernelmcp_shell.archives.tar_command import make_tar
from kernelmcp_shell.archives.zip_commands import make_zip_commands
from kernelmcp_shell.commands.bc_command import make_bc
from kernelmcp_shell.commands.copy_commands import make_copy_commands
from kernelmcp_shell.commands.expr_command import make_expr
from kernelmcp_shell.commands.realpath_command import make_realpath
from kernelmcp_shell.commands.remove_command import make_rm
from kernelmcp_shell.commands.test_command import make_test_commands
from kernelmcp_shell.curl import make_curl
from kernelmcp_shell.facts import make_facts
from kernelmcp_shell.files import STANDARD_INPUT, Files, Folder
from kernelmcp_shell.filesystem_abi import FileSystemAbi
from kernelmcp_shell.frames import FrameWriter, read_frames
from kernelmcp_shell.ls_command import make_ls
from kernelmcp_shell.python_programs import make_programs
from kernelmcp_shell.quota import Quota
from kernelmcp_shell.shell import EXIT_INTERRUPTED, MAX_OUTPUT_BYTES, Outcome, Shell
from kernelmcp_shell.small_commands import make_small_commands
from kernelmcp_shell.streams import Streams
from kernelmcp_shell.tool_calls.mcp import ToolCalls, make_mcp
from kernelmcp_shell.tool_calls.permission import Permission
from kernelmcp_shell.wget import make_wget

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Content = dict[str, Any]

_REQUESTS, _FRAMES, _INTERRUPTS = 3, 4, 5
_BACKGROUND = 0xFFFFFFFF  # an interrupt of background tasks, which do not exist here
_NUMBER = struct.Struct("<I")
_HOME = {"HOME": "/workspace", "LANG": "C.UTF-8", "TERM": "dumb"}
_NO_ERROR = "--no-raise-error"  # as in IPython's `%%bash`
_OPTIONS = set("eux")
# Variables that Python cannot change here, nor for a command apart if there are rules: by these, a script would run
# commands that no rule has judged.
_SHELLS_OWN = {"PATH", "PS4", "IFS", "PWD", "OLDPWD"}
_EXIT_REFUSED = 126  # as of a command that may not be executed
_CUT = f"bash: output was cut: a cell's streams can hold {MAX_OUTPUT_BYTES >> 20} MiB each\n"


class RequestLoop:
    """A shell guest's process. `options`: library, and language.py's options for files and folders."""

    def __init__(self, options: dict[str, Any]) -> None:
        folders = [
            Folder("/workspace", options["workspace"], counted=True, noted=""),
            Folder("/servers", options["offered"], read_only=True),
            Folder("/tmp", options["tmp"], counted=True),  # noqa: S108  # what the shell calls it
            *(
                Folder(point, volume["path"], read_only=volume["mode"] != "rw", noted=f"{point}/")
                for volume in options["volumes"]
                for point in (f"/volumes/{volume['name']}",)
            ),
        ]
        self._quota = Quota(options["quota"], [options["workspace"], options["tmp"]])
        self._files = Files(folders, self._quota)
        self._abi = FileSystemAbi(self._files)
        self._working_directory = options["working_directory"]
        self._writer = FrameWriter(_FRAMES)
        self._requests: queue.SimpleQueue[Content | None] = queue.SimpleQueue()
        self._environment = dict(_HOME)
        self._of_python: dict[str, str | None] = {}
        calls = ToolCalls(self._ask)
        self._commands = {
            **make_programs(self._ask, lambda: self._runs.output_of_programs),
            "curl": make_curl(self._ask, self._files),
            "mcp": make_mcp(calls, self._files),
            "wget": make_wget(self._ask, self._files),
            "kernelmcp-gunzip": make_gunzip(self._files),
            "kernelmcp-tar": make_tar(self._files),
            **make_bc(self._files),
            **make_expr(),
            **make_realpath(self._files),
            "rm": make_rm(self._files),
            **make_copy_commands(self._files),
            **make_test_commands(self._files),
            **make_ls(self._files),
            **make_facts(options["system"], self._files, self._quota),
            **make_zip_commands(self._files),
            **make_small_commands(self._files),
        }
        self._permission = Permission(calls) if options["ask_commands"] else None
        self._calls: dict[int, tuple[threading.Event, Content]] = {}
        self._call_count = 0
        self._lock = threading.Lock()
        self._id = ""
        self._number = 0
        self._last_interrupted = 0
        self._interrupted = False
        self._shell = self._make_shell(self._working_directory, self._environment)
        self._runs = self._shell

    def run(self) -> None:
        """Run until the requests pipe ends."""
        for target in (self._read_requests, self._read_interrupts):
            threading.Thread(target=target, daemon=True).start()
        self._writer.send("ready", "", {})
        while (request := self._requests.get()) is not None:
            if "number" in request:
                self._answer(request)
            elif request["op"] == "set_environment":
                self._environment |= request["content"]
                self._shell.set_environment(request["content"])
            elif request["op"] == "set_quota":
                self._quota.limits = request["content"]
        os._exit(0)  # a thread may be blocked in a read that never ends

    def _make_shell(self, cwd: str, environment: Content) -> Shell:
        return Shell(self._abi.capsule(), self._commands, environment, cwd, lambda: self._interrupted)

    # -- input

    def _read_requests(self) -> None:
        for request in read_frames(_REQUESTS):
            if request["op"] == "result":
                self._end_call(request["content"]["number"], request["content"])
            elif request["op"] == "interrupt":
                # Descriptor 5 has it, too. Here it arrives before the answers to the calls that the interrupt ends, so
                # that the command does not end with these answers as errors.
                with self._lock:
                    if self._number:
                        self._interrupt()
            else:
                self._requests.put(request)
        self._requests.put(None)

    def _read_interrupts(self) -> None:
        poll = select.poll()
        poll.register(_INTERRUPTS, select.POLLIN)
        while poll.poll():
            data = os.read(_INTERRUPTS, 1024 * _NUMBER.size)
            if not data:
                return
            numbers = {number for (number,) in _NUMBER.iter_unpack(data[: len(data) // 4 * 4])}
            with self._lock:
                # It may overtake its request, which arrives on another descriptor.
                self._last_interrupted = max(self._last_interrupted, *(numbers - {_BACKGROUND}), 0)
                if self._number and self._number <= self._last_interrupted:
                    self._interrupt()

    def _interrupt(self) -> None:
        self._interrupted = True
        self._runs.interrupt()
        for number in list(self._calls):
            self._end_call(number, {"error": "interrupted"})

    def _ask(self, arguments: Content) -> Content:
        """Make a host call; return its answer."""
        with self._lock:
            self._call_count += 1
            number = self._call_count
            if self._interrupted:
                return {"error": "interrupted"}
            answer: tuple[threading.Event, Content] = (threading.Event(), {})
            self._calls[number] = answer
        try:
            self._send("call", {"number": number, "arguments": arguments})
        except ValueError as error:
            self._calls.pop(number, None)
            return {"error": str(error)}
        answer[0].wait()
        return answer[1]

    def _end_call(self, number: int, content: Content) -> None:
        if (waiting := self._calls.pop(number, None)) is not None:
            waiting[1].update(content)
            waiting[0].set()

    # -- requests

    def _send(self, frame_type: str, content: Content) -> None:
        self._streams.flush()
        if changed := self._files.take_changed():
            self._writer.send("files", self._id, {"changed": changed})
        self._writer.send(frame_type, self._id, content)

    def _answer(self, request: Content) -> None:
        request_id, content = request["id"], request["content"]
        self._id = request_id
        self._streams = Streams(
            lambda name, text: self._writer.send("stream", request_id, {"name": name, "text": text})
        )
        with self._lock:
            self._number = request["number"]
            self._interrupted = self._number <= self._last_interrupted
        self._quota.begin()
        try:
            reply = self._reply(request["op"], content)
        finally:
            with self._lock:
                self._number = 0
        if self._interrupted:
            self._send("interrupted", {})
        self._send("reply", reply)

    def _reply(self, op: str, content: Content) -> Content:
        if op == "execute":
            return self._execute_apart(content) if "capture" in content else self._execute(content)
        if op == "complete":
            cursor = content["cursor_pos"]
            return {"status": "ok", "matches": [], "cursor_start": cursor, "cursor_end": cursor, "metadata": {}}
        if op == "inspect":
            return {"status": "ok", "found": False, "data": {}, "metadata": {}}
        if op == "is_complete":
            return {"status": "unknown"}
        return {"status": "error", "ename": "NotImplementedError", "evalue": op, "traceback": []}

    def _execute(self, content: Content) -> Content:
        self._runs = self._shell
        if python := content.get("python"):
            self._take_variables(python["environment"], python["unset"])
        silent = content.get("silent")
        words = content.get("arguments", "").split()
        options = [word for word in words if word != _NO_ERROR]
        if any(word[0] != "-" or set(word[1:]) - _OPTIONS for word in options):
            return _refusal(f"%%bash takes -e, -u, -x and {_NO_ERROR} here, not {' '.join(words)!r}")
        code = f"set {' '.join(options)}; {content['code']}" if options else content["code"]
        write = _drop if silent else self._streams.write
        found = self._refused(content["code"], write) or self._shell.run(code, write, in_cell=not silent)
        if found.cut and not silent:
            self._streams.write("stderr", _CUT)
        counted = {"execution_count": content.get("execution_count"), "exit_code": found.exit_code}
        if (not found.exit_code and not found.problem) or (_NO_ERROR in words and not found.interrupted):
            return {"status": "ok", "user_expressions": {}, **counted}
        fault = _fault(found)
        if not silent:
            self._send("error", fault)
        return {"status": "error", **fault, **counted}

    def _take_variables(self, environment: dict[str, str], unset: list[str]) -> None:
        """Follow what Python has changed of its environment variables since the last cell. None: one that it unset."""
        now = dict.fromkeys(unset) | environment
        for name in _SHELLS_OWN & now.keys():
            del now[name]
        back = {name: self._environment.get(name) for name in self._of_python.keys() - now.keys()}
        changed = dict(now.items() - self._of_python.items())
        self._of_python = now
        self._shell.set_environment(back | changed)

    def _execute_apart(self, content: Content) -> Content:
        """Execute in a separate shell, as for a program's command: only files are kept."""
        captured = bool(content["capture"])
        cwd = content.get("cwd") or self._working_directory
        kept = {name: value for name, value in self._environment.items() if name not in content.get("unset", ())}
        variables: dict[str, str] = content.get("environment") or {}
        own = _SHELLS_OWN if self._permission else ()
        changed = {name: value for name, value in variables.items() if name not in own}
        shell = self._runs = self._make_shell(cwd, kept | changed)
        given = content.get("stdin")
        code = content["code"]
        if given is not None:
            self._files.standard_input = base64.b64decode(given)
            code = f"{{ :; {code}\n}} < {STANDARD_INPUT}"
        try:
            texts = {"stdout": "", "stderr": ""}

            def collect(name: str, text: str) -> None:
                texts[name] += text

            write = collect if captured else self._streams.write
            found = self._refused(content["code"], write) or shell.run(code, write, in_cell=not captured)
        finally:
            self._files.standard_input = b""
        if not captured:
            if found.cut:
                self._streams.write("stderr", _CUT)
            return {"status": "ok", "exit_code": found.exit_code, "interrupted": found.interrupted}
        # If bashkit has ended it, the bytes contain only its error message.
        stdout = texts["stdout"].encode() if found.problem else found.stdout
        stderr = texts["stderr"].encode() if found.problem else found.stderr
        stderr += _CUT.encode() if found.cut else b""
        return {
            "status": "ok",
            "exit_code": found.exit_code,
            "interrupted": found.interrupted,
            "stdout": base64.b64encode(stdout).decode("ascii"),
            "stderr": base64.b64encode(stderr).decode("ascii"),
        }

    def _refused(self, code: str, write: Callable[[str, str], None]) -> Outcome | None:
        """None if the script may run. Its own shell's aliases and functions were judged when they were made."""
        refusal = self._permission.refusal(code, *self._runs.commands(code)) if self._permission else ""
        if not refusal:
            return None
        if self._interrupted:
            return Outcome(EXIT_INTERRUPTED, b"", b"", "", interrupted=True, cut=False)
        write("stderr", f"bash: {refusal}\n")
        return Outcome(_EXIT_REFUSED, b"", b"", "not permitted", interrupted=False, cut=False)


def _drop(name: str, text: str) -> None:
    """Discard the output of a silent cell."""


def _refusal(text: str) -> Content:
    return {"status": "error", "ename": "ValueError", "evalue": text, "traceback": [f"ValueError: {text}"]}


def _fault(found: Outcome) -> Content:
    if found.interrupted:
        return {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
    evalue = f"exit status {found.exit_code}" + (f": {found.problem}" if found.problem else "")
    return {"ename": "CalledProcessError", "evalue": evalue, "traceback": [f"CalledProcessError: {evalue}"]}
