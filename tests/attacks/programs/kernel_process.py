"""Attacks on the kernel process and its pip by a cell: by what it may write, and by what it asks to have installed.

Each function is one attempt; its docstring is its title. Runs in a session's guest, with the globals of Node left to it. `t` is
what the attacker knows (world.py). `payload` is Python that leaves a file outside when trusted code runs it.
"""

# ruff: noqa: ASYNC230, E501, SIM115

import contextlib
import os

NAMES = (
    "packaging", "zipfile", "html", "urllib", "tomllib", "email", "colorsys", "pip", "truststore", "asyncio", "configparser",
    "mimetypes", "sitecustomize", "usercustomize", "kernelmcp_kernel", "site",
)  # fmt: skip
CONFIGURATION = "[global]\nindex-url = http://127.0.0.1:{port}/\nextra-index-url = http://127.0.0.1:{port}/\n"


async def control(t):
    """control"""
    open("/workspace/control", "w").write("works")


async def install(what):
    import micropip

    try:
        await micropip.install(what)
    except Exception as error:  # noqa: BLE001  # what it says may be what was wanted
        return f"{type(error).__name__}: {error}"
    return "installed"


def plant(folder, t):
    for name in NAMES:
        with contextlib.suppress(OSError):
            open(f"{folder}/{name}.py", "w").write(t["payload"])


def node(name):
    import js

    return js.process.getBuiltinModule(name)


async def modules_in_the_workspace(t):
    """modules for the kernel process in the workspace and /tmp"""
    plant("/workspace", t)
    plant("/tmp", t)
    return await install("absent-package-of-the-attack")


async def modules_above(t):
    """modules one folder up, by the mount's root"""
    import pyodide_js

    options = pyodide_js.FS.lookupPath("/workspace").node.mount.opts
    kept = options.root
    options.root = t["above"]
    try:
        plant("/workspace", t)
    finally:
        options.root = kept
    return await install("absent-package-of-the-attack")


async def modules_above_by_node(t):
    """modules one folder up, by Node's own fs"""
    for name in NAMES:
        with contextlib.suppress(Exception):
            node("fs").writeFileSync(f"{t['above']}/{name}.py", t["payload"])
    return await install("absent-package-of-the-attack")


async def modules_in_a_volume(t):
    """modules in a volume that is the kernel's working directory and on its PYTHONPATH"""
    plant("/volumes/shared", t)
    return await install("absent-package-of-the-attack")


async def configuration(t):
    """pip.conf and .netrc in the workspace, /tmp and a volume that is HOME"""
    for folder in ("/workspace", "/tmp", "/volumes/shared"):
        os.makedirs(f"{folder}/.config/pip", exist_ok=True)
        os.makedirs(f"{folder}/.pip", exist_ok=True)
        for name in ("pip.conf", ".pip/pip.conf", ".config/pip/pip.conf"):
            open(f"{folder}/{name}", "w").write(CONFIGURATION.format(port=t["ports"]["tcp4"]))
        open(f"{folder}/.netrc", "w").write("machine 127.0.0.1 login x password y\n")
    return await install("absent-package-of-the-attack")


async def variable_by_equals(t):
    """a variable of the environment: six===${NAME}"""
    return await install("six===${" + t["variable"] + "}")


async def variable_by_marker(t):
    """a variable of the environment, in a marker"""
    return await install(f"absent-of-the-attack; os_name != '${{{t['variable']}}}'")


async def variable_by_name(t):
    """a variable of the environment, as name, extra and version"""
    name = "${" + t["variable"] + "}"
    return "".join([await install(each) for each in (name, f"six[{name}]", f"six=={name}", f"six>={name}")])


def package(t, backend):
    os.makedirs("/workspace/evil", exist_ok=True)
    open("/workspace/evil/setup.py", "w").write(t["payload"])
    if backend:
        text = '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n'
        open("/workspace/evil/pyproject.toml", "w").write(text)


async def setup_py(t):
    """a setup.py in the workspace: six===/../../workspace/evil"""
    package(t, backend=False)
    return await install("six===/" + "../" * 20 + t["workspace"].lstrip("/") + "/evil")


async def build_backend(t):
    """a build backend in the workspace: six===/../../workspace/evil"""
    package(t, backend=True)
    return await install("six===/" + "../" * 20 + t["workspace"].lstrip("/") + "/evil")


async def by_address(t):
    """a package in the workspace, by its address and by its path"""
    package(t, backend=True)
    place = t["workspace"] + "/evil"
    ways = (f"evil @ file://{place}", place, f"file://{place}", f"-e {place}", f"evil@{place}", f"./../..{place}")
    return "".join([await install(each) for each in ways])


async def line_break(t):
    """a line of its own in pip's requirements file, by a line break in a marker"""
    ways = [f"six; os_name == 'x{end}-r {t['secret']}{end}'" for end in ("\n", "\r", "\x0b", "\x85", "\u2028")]
    ways += [f"six==1.0\n-r {t['secret']}", f"six[x\n-r {t['secret']}]", f"six\\\n-r {t['secret']}"]
    return "".join([await install(each) for each in ways])


ATTACKS = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__code__", None)
    and value.__code__.co_varnames[: value.__code__.co_argcount] == ("t",)
    and value is not control
}


async def attempt(name, t):
    try:
        return str(await globals()[name](t))
    except BaseException as error:  # noqa: BLE001  # whatever stopped it, its text is the answer
        return f"{type(error).__name__}: {error}"[:300]
