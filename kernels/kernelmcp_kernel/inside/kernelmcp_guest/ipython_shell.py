"""The IPython shell of the guest: its display hook, display publisher and tracebacks send Jupyter messages."""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportIncompatibleMethodOverride=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import asyncio
import base64
import os
import sys
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.events import EventManager, available_events
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import LSString, SList
from traitlets import Type

from kernelmcp_guest import advice, blocking, memory
from kernelmcp_guest.bridge import bridge, send
from kernelmcp_guest.guest_kernel import GuestKernel
from kernelmcp_guest.plots.animations import AnimationHTML
from kernelmcp_guest.plots.without_screen import usable_gui
from kernelmcp_guest.programs import lines
from kernelmcp_guest.tracebacks import (
    GuestSyntaxTB,
    GuestTB,
    behind_expression,
    format_group,
    is_left_to_python,
    shorten,
)

_OUT_OF_MEMORY: dict[str, Any] = {"ename": "MemoryError", "evalue": "", "traceback": ["MemoryError"]}


def encode_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """A mime bundle in the Jupyter protocol's form: bytes as base64 text."""
    return {
        str(mime): base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value
        for mime, value in data.items()
    }


def send_bundle(message: str, data: dict[str, Any], metadata: dict[str, Any] | None, **rest: Any) -> None:
    """Send a display message; if a broken display object cannot be sent, send a note instead.

    An animation's first frame is sent before its HTML, which not every client can play.
    """
    if isinstance(html := data.get("text/html"), AnimationHTML) and (frame := html.first_frame()):
        send("display_data", data=frame, metadata={}, transient={})
        data = {**data, "text/plain": html.line()}
    try:
        send(message, data=encode_bundle(data), metadata=metadata or {}, **rest)
    except (TypeError, ValueError, RecursionError) as error:
        note = f"<this object cannot be shown: {type(error).__name__}: {error}>"
        send(message, data={"text/plain": note}, metadata={}, **rest)


class GuestDisplayHook(DisplayHook):
    """Publishes the value of a cell's last expression as `execute_result`."""

    def __call__(self, result: Any = None) -> None:
        shell: Any = self.shell
        before = shell.last_error
        super().__call__(result)
        if shell.last_error is not before:  # a `__repr__` failed, and IPython has shown the error
            shell.result_error = shell.last_error

    def start_displayhook(self) -> None:
        pass

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        if format_dict:
            send_bundle("execute_result", format_dict, md_dict, execution_count=self.prompt_count)

    def finish_displayhook(self) -> None:
        pass


class GuestDisplayPublisher(DisplayPublisher):
    """Publishes `display_data`, `update_display_data` and `clear_output`."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        message = "update_display_data" if update else "display_data"
        send_bundle(message, data, metadata, transient=transient or {})

    def clear_output(self, wait: bool = False) -> None:
        send("clear_output", wait=wait)


class GuestEvents(EventManager):
    """IPython's, except for an interrupt in a callback: it is meant for the cell, and is raised again."""

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        for callback in self.callbacks[event][:]:
            try:
                callback(*args, **kwargs)
            except KeyboardInterrupt:
                bridge.interrupt_again(True)
            except Exception:  # noqa: BLE001  # a callback of the user's
                where = f"{callback} (for {event}), with arguments args {args},kwargs {kwargs}"
                sys.stdout.write(f"Error in callback {where}:\n")
                self.shell.showtraceback()


class GuestShell(InteractiveShell):
    """One per guest. `last_error` is the running cell's error, as the content of a Jupyter error message, and
    `result_error` the error when its last expression was displayed."""

    displayhook_class = Type(GuestDisplayHook)
    display_pub_class = Type(GuestDisplayPublisher)
    last_error: dict[str, Any] | None = None
    result_error: dict[str, Any] | None = None
    interrupted = False
    kernel = GuestKernel()

    def get_parent(self) -> dict[str, Any]:
        """The current message; only its header is known here."""
        return self.kernel.get_parent()

    @property
    def parent_header(self) -> dict[str, Any]:
        return self.kernel.get_parent()

    def init_events(self) -> None:
        super().init_events()
        stock, self.events = self.events, GuestEvents(self, available_events)
        self.events.callbacks.update(stock.callbacks)

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        super().init_traceback_handlers(custom_exceptions)
        self.SyntaxTB = GuestSyntaxTB(theme_name=self.colors)
        self.InteractiveTB = GuestTB(mode=self.xmode, theme_name=self.colors, tb_offset=1)

    async def run_code(self, *args: Any, **kwargs: Any) -> bool:
        bridge.look_soon()
        return await super().run_code(*args, **kwargs)

    def show_usage_error(self, exc: BaseException) -> None:
        """Show one line, as IPython does."""
        self._showtraceback(type(exc), exc, [f"UsageError: {exc}"])

    def excepthook(self, etype: Any, value: Any, tb: Any) -> None:
        """Pyodide calls it for exceptions that leave Python, including those that a cell waits for and receives."""
        if not blocking.is_awaited(value):
            super().excepthook(etype, value, tb)

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        # An interrupt during an `await` arrives as a cancellation; the person who pressed stop expects its usual name.
        kind, value, traceback = self._get_exc_info(exc_tuple)
        if self.interrupted and issubclass(kind, asyncio.CancelledError):
            kind, value = KeyboardInterrupt, KeyboardInterrupt()
        if issubclass(kind, MemoryError):
            memory.release()
        elif (too_large := memory.as_memory_error(value)) is not None:
            kind, value = MemoryError, too_large
            exc_tuple = (kind, value, traceback)
        if issubclass(kind, KeyboardInterrupt):
            exc_tuple = (kind, value or kind(), traceback)
        shorten(value)
        if value is not None and is_left_to_python(value):
            self._showtraceback(kind, value, format_group(value))
            return
        super().showtraceback(exc_tuple, *args, **kwargs)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        try:
            text = str(evalue)
        except Exception as error:  # noqa: BLE001  # a broken __str__ must not hide that there was an error
            text = f"<str() of the exception raised {type(error).__name__}>"
        self.last_error = {"ename": etype.__name__, "evalue": text, "traceback": [str(line) for line in stb]}
        send("error", **self.last_error)

    def user_expressions(self, expressions: dict[str, str]) -> dict[str, Any]:
        before, sys.excepthook = sys.excepthook, self.excepthook
        try:
            return super().user_expressions(expressions)
        finally:
            sys.excepthook = before

    def _user_obj_error(self) -> dict[str, Any]:
        """The error of one of the user_expressions, with the cell's lines that it called."""
        found = super()._user_obj_error()
        kind, error, entries = self._get_exc_info()
        if (called := behind_expression(entries)) is not None:
            found["traceback"] = self.InteractiveTB.structured_traceback(kind, error, called, tb_offset=0)
        return found

    def _format_exception_for_storage(self, exception: BaseException, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What the history keeps of an error. Of a MemoryError neither its name nor its text: they would lie in the
        middle of the memory that is free once the large object is deleted."""
        if isinstance(exception, MemoryError):
            return _OUT_OF_MEMORY
        return super()._format_exception_for_storage(exception, *args, **kwargs)

    def show_name(self, error: BaseException) -> None:
        """Send only the name of an error whose traceback cannot be formatted."""
        self._showtraceback(type(error), error, [type(error).__name__])

    def show_line(self, error: BaseException) -> None:
        """Send an error without a traceback."""
        self._showtraceback(type(error), error, [f"{type(error).__name__}: {error}"])

    def ask_exit(self) -> None:
        self.payload_manager.write_payload({"source": "ask_exit", "keepkernel": True})

    def set_next_input(self, text: str, replace: bool = False) -> None:
        self.payload_manager.write_payload({"source": "set_next_input", "text": text, "replace": replace})

    def system(self, cmd: str) -> None:
        """Run `!cmd`."""
        __tracebackhide__ = True
        lines.run(self, self.var_expand(cmd, depth=1))

    system_raw = system_piped = system

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Run `x = !cmd`: returns both streams, as in IPython."""
        __tracebackhide__ = True
        text = lines.output_of(self.var_expand(cmd, depth=depth + 1))
        return SList(text.splitlines()) if split else LSString(text)

    def debugger(self, force: bool = False) -> None:
        """`%debug`; and, with `%pdb on`, after an error."""
        if self.call_pdb and not blocking.stdin_allowed:
            self.call_pdb = False
            sys.stderr.write(f"%pdb is off again: {advice.NO_DEBUGGER}\n")
            return
        super().debugger(force)

    def enable_matplotlib(self, gui: str | None = None) -> Any:
        """`%matplotlib` and `%pylab`, without a screen. If matplotlib cannot be installed, nothing is selected: once
        installed, it draws inline (MPLBACKEND)."""
        gui = usable_gui(gui)
        try:
            return super().enable_matplotlib(gui)
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            return gui or "inline", os.environ.get("MPLBACKEND")

    def enable_gui(self, gui: str | None = None) -> None:
        if gui not in (None, "inline"):
            raise NotImplementedError(f"GUI event loop {gui!r} is not available: the sandbox has no screen")

    def init_io(self) -> None:
        pass
