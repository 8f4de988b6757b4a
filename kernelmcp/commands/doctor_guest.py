"""Attempts of `kernelmcp doctor` in the sandbox: one forbidden action per run, as a hostile cell would try it.

Runs as a cell, in the guest and (as the control that must breach) in a native kernel; so it imports nothing of ours.
doctor.json in the working directory names the attempt and its targets; the answer is one line of JSON on stdout.
"""

import contextlib
import importlib
import json
import os
import platform
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

Targets = dict[str, Any]
Answer = dict[str, Any]

IMAGE_MAGIC = b"KMIMAGE2"


class NotPossible(Exception):
    """The attempt has no meaning here: there is no JavaScript to go through."""


def breach(detail: str) -> Answer:
    return {"breached": True, "detail": detail}


def refused(detail: str) -> Answer:
    return {"breached": False, "detail": detail}


def untried(detail: str) -> Answer:
    return {"breached": None, "detail": detail}


def module(name: str) -> Any:
    """A module of Pyodide; unknown elsewhere."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotPossible("there is no JavaScript in this kernel") from None


def node(name: str) -> Any:
    """A module of Node."""
    return module("js").process.getBuiltinModule(name)


# -- what is here ---------------------------------------------------------------------------------------------------


def facts(targets: Targets) -> Answer:
    found: Answer = {"platform": sys.platform, "machine": platform.machine(), "python": platform.python_version()}
    with contextlib.suppress(ImportError):
        found["ipython"] = importlib.import_module("IPython").__version__
    with contextlib.suppress(NotPossible):
        process = module("js").process
        found["pyodide"] = module("pyodide").__version__
        found["node"] = str(process.version).removeprefix("v")
        found["permission"] = getattr(process, "permission", None) is not None
        found["settings"] = guest_settings(list(process.argv))
    return found


def guest_settings(arguments: list[str]) -> Answer | None:
    """The settings that the kernel process gave its guest, such as the path of the boot image."""
    try:
        settings = json.loads(arguments[-1])
    except (IndexError, ValueError):
        return None
    return cast("Answer", settings) if isinstance(settings, dict) else None


def control(targets: Targets) -> Answer:
    """Allowed: a file of the workspace, accessed like in `javascript_file`. It must work."""
    text = str(node("fs").readFileSync(targets["allowed_file"], "utf8"))
    return breach("the workspace can be read") if text == targets["token"] else refused("other text was read")


# -- attempts -------------------------------------------------------------------------------------------------------


def first_readable(paths: list[str], read: Callable[[str], str]) -> Answer:
    reasons: list[str] = []
    for path in paths:
        try:
            if read(path):
                return breach(f"read {path}")
        except Exception as exc:  # noqa: BLE001  whatever stops us, the reason is what is asked for
            reasons.append(short(exc))
    return refused(reasons[0] if reasons else "the files were empty")


def python_file(targets: Targets) -> Answer:
    return first_readable(targets["secret_files"], lambda path: Path(path).read_text("utf-8"))


def javascript_file(targets: Targets) -> Answer:
    fs = node("fs")
    return first_readable(targets["secret_files"], lambda path: str(fs.readFileSync(path, "utf8")))


def nodefs_mount(targets: Targets) -> Answer:
    module("pyodide_js").mountNodeFS("/doctor-host", "/")
    mounted = [f"/doctor-host{path}" for path in targets["secret_files"]]
    return first_readable(mounted, lambda path: Path(path).read_text("utf-8"))


def link(targets: Targets) -> Answer:
    """A link out of the workspace that the host made. Uses Node if available: Python's own file system would look for
    the link's target in the guest."""
    try:
        text = str(node("fs").readFileSync(targets["link"], "utf8"))
    except NotPossible:
        text = Path(targets["link"]).read_text("utf-8")
    return breach("the link was followed") if text == targets["token"] else refused("other text was read")


def python_write(targets: Targets) -> Answer:
    Path(targets["outside_file"]).write_text(targets["token"], "utf-8")
    return refused("written, but into the guest's own memory")  # doctor checks whether it is on the host


def javascript_write(targets: Targets) -> Answer:
    node("fs").writeFileSync(targets["outside_file"], targets["token"])
    return breach("wrote outside of the workspace")


def python_process(targets: Targets) -> Answer:
    subprocess = importlib.import_module("subprocess")
    done = subprocess.run(targets["program"], capture_output=True, text=True, check=False)
    if "emscripten" in done.stdout:
        return refused("it ran in this very Python")
    return breach("started a process") if targets["token"] in done.stdout else refused("it printed nothing")


def javascript_process(targets: Targets) -> Answer:
    program, *arguments = targets["program"]
    children = node("child_process")
    output = str(children.execFileSync(program, module("pyodide.ffi").to_js(arguments)))
    return breach("started a process") if targets["token"] in output else refused("it printed nothing")


def environment(targets: Targets) -> Answer:
    variables = dict(os.environ)
    with contextlib.suppress(NotPossible):
        js = module("js")
        variables |= {str(name): str(getattr(js.process.env, name)) for name in js.Object.keys(js.process.env)}
    if targets["token"] in variables.values():
        return breach(f"read a variable of the host ({len(variables)} are visible)")
    return refused("the host's variables are not there")


def descriptors(targets: Targets) -> Answer:
    """Descriptors other than pipes, events, /dev/null and the boot image: files, directories, sockets of the host."""
    try:
        fstat: Callable[[int], int] = node_mode
        fstat(0)
    except NotPossible:
        fstat = python_mode
    open_ones: list[str] = []
    for descriptor in range(256):
        with contextlib.suppress(Exception):  # a closed one
            mode = fstat(descriptor)
            is_file = stat.S_ISREG(mode) and not is_image(descriptor)
            if is_file or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode) or stat.S_ISBLK(mode):
                open_ones.append(str(descriptor))
    return breach(f"holds descriptors {', '.join(open_ones)}") if open_ones else refused("only pipes and /dev/null")


def is_image(descriptor: int) -> bool:
    """Whether it is the boot image, which the guest was started from: it finds there what its session has changed."""
    try:
        content = module("js").Uint8Array.new(len(IMAGE_MAGIC))
        node("fs").readSync(descriptor, content, 0, len(IMAGE_MAGIC), 0)
        return bytes(content.to_py()) == IMAGE_MAGIC
    except Exception:  # noqa: BLE001  # not readable, or not Node's: it is some other file
        return False


def node_mode(descriptor: int) -> int:
    return int(node("fs").fstatSync(descriptor).mode)


def python_mode(descriptor: int) -> int:
    return os.fstat(descriptor).st_mode


def python_socket(targets: Targets) -> Answer:
    socket = importlib.import_module("socket")
    with socket.create_connection(("127.0.0.1", targets["port"]), timeout=2) as connection:
        connection.sendall(targets["token"].encode())
    return refused("sent, but nothing arrived")  # doctor checks whether it has arrived


def ignore_error(error: Any) -> None:
    """Handle errors: an unhandled one would end Node."""


def javascript_socket(targets: Targets) -> Answer:
    handler = module("pyodide.ffi").create_proxy(ignore_error)
    connection = node("net").connect(targets["port"], "127.0.0.1")
    connection.on("error", handler)
    connection.end(targets["token"])  # sent after this cell has ended
    return refused("nothing arrived")


def signal(targets: Targets) -> Answer:
    """Signal 0 changes nothing: it only asks whether a signal may be sent."""
    try:
        module("js").process.kill(targets["process"], 0)
    except NotPossible:
        os.kill(targets["process"], 0)
    return breach("may send signals to processes of this user")


ATTEMPTS: dict[str, Callable[[Targets], Answer]] = {
    function.__name__: function
    for function in (
        facts,
        control,
        python_file,
        javascript_file,
        nodefs_mount,
        link,
        python_write,
        javascript_write,
        python_process,
        javascript_process,
        environment,
        descriptors,
        python_socket,
        javascript_socket,
        signal,
    )
}


def short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:160]


def attempt(targets: Targets) -> Answer:
    try:
        return ATTEMPTS[targets["attempt"]](targets)
    except NotPossible as exc:
        return untried(str(exc))
    except Exception as exc:  # noqa: BLE001  whatever stops us, the reason is the answer
        return refused(short(exc))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attempt(json.loads(Path("doctor.json").read_text("utf-8")))) + "\n")
