"""Attacks by native code that owns its process: whatever system call it likes, as after a break-out from V8 as well.

A plain Python in the guest's place (it is what can make any system call without a compiler). Each function is one attempt;
its docstring is its title; what it returns is what it got hold of. Numbers are those of x86-64 and of ARM64. It is long
because it is one program: a confined process can import nothing else of ours.
"""

# ruff: noqa: E501, SIM105, SIM115

import ctypes
import json
import os
import platform
import socket
import struct
import sys

ARM = platform.machine() == "aarch64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
REFUSED = (1, 13, 38)  # EPERM, EACCES, ENOSYS


def call(x86, arm, *arguments):
    """A system call; raises OSError when it fails."""
    number = arm if ARM else x86
    if number is None:
        raise OSError(38, "there is no such call on this machine")
    result = libc.syscall(
        number,
        *[
            a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) if isinstance(a, int) else a
            for a in arguments
        ],
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def reach(x86, arm, *arguments):
    """A system call with arguments that are no good: any complaint about them shows that it was let through."""
    try:
        call(x86, arm, *arguments)
    except OSError as error:
        if error.errno in REFUSED:
            raise
        return f"BREACH: the system looked at its arguments ({error.strerror})"
    return "BREACH: the system did it"


def control(t):
    """control"""
    open(f"{t['workspace']}/control", "w").write("works")


def _socket(family, kind=socket.SOCK_DGRAM, protocol=0):
    fd = call(41, 198, family, kind, protocol)
    os.close(fd)
    return "BREACH: it has a socket"


def socket_unix(t):
    """socket(AF_UNIX)"""
    return _socket(1)


def socket_inet(t):
    """socket(AF_INET)"""
    return _socket(2)


def socket_inet6(t):
    """socket(AF_INET6)"""
    return _socket(10)


def socket_netlink(t):
    """socket(AF_NETLINK)"""
    return _socket(16, socket.SOCK_RAW)


def socket_packet(t):
    """socket(AF_PACKET)"""
    return _socket(17, socket.SOCK_RAW)


def socket_alg(t):
    """socket(AF_ALG)"""
    return _socket(38, socket.SOCK_SEQPACKET)


def socket_vsock(t):
    """socket(AF_VSOCK)"""
    return _socket(40, socket.SOCK_STREAM)


def socket_raw(t):
    """socket(AF_INET, SOCK_RAW)"""
    return _socket(2, socket.SOCK_RAW, 1)


def socket_pair(t):
    """socketpair"""
    return reach(53, 199, 1, 1, 0, 0)


def send_tcp(t):
    """connect and send"""
    with socket.create_connection(("127.0.0.1", t["ports"]["tcp4"]), 2) as own:
        own.sendall(b"native")


def bind_tcp(t):
    """bind and listen"""
    with socket.create_server(("127.0.0.1", 0)):
        return "BREACH: it listens"


def send_abstract(t):
    """connect to an abstract socket"""
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(f"\0{t['abstract']}")


def send_unix(t):
    """connect to a Unix socket in the workspace"""
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(t["unix_inside"])


def read_secret(t):
    """open the secret"""
    return open(t["secret"]).read()


def read_secret_openat2(t):
    """openat2 the secret"""
    how = struct.pack("QQQ", 0, 0, 0)
    fd = call(437, 437, -100, t["secret"].encode(), how, 24)
    return os.read(fd, 100).decode()


def read_by_handle(t):
    """open_by_handle_at"""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
    mount = ctypes.create_string_buffer(4)
    call(303, 264, -100, t["secret"].encode(), handle, mount, 0)
    where = os.open("/", os.O_RDONLY)
    fd = call(304, 265, where, handle, 0)
    return os.read(fd, 100).decode()


def read_inherited(t):
    """read every inherited descriptor"""
    found = ""
    for fd in range(6, 300):
        try:
            found += os.pread(fd, 100, 0).decode("latin-1")
        except OSError:
            pass
    return found


def read_environment(t):
    """its environment"""
    return json.dumps(dict(os.environ))


def parent_memory(t):
    """/proc/PID/mem of the parent"""
    os.close(os.open(f"/proc/{t['parent']}/mem", os.O_RDONLY))
    return "BREACH: it is open"


def victim_memory(t):
    """process_vm_readv of another process"""
    buffer = ctypes.create_string_buffer(16)
    own = struct.pack("QQ", ctypes.addressof(buffer), 16)
    theirs = struct.pack("QQ", 1, 16)
    return reach(310, 270, t["victim"], own, 1, theirs, 1, 0)


def victim_memory_write(t):
    """process_vm_writev to another process"""
    return reach(311, 271, t["victim"], 0, 0, 0, 0, 0)


def ptrace(t):
    """ptrace another process"""
    return reach(101, 117, 16, t["victim"], 0, 0)


def ptrace_me(t):
    """ptrace(PTRACE_TRACEME)"""
    return reach(101, 117, 0, 0, 0, 0)


def signal_kill(t):
    """kill another process"""
    os.kill(t["victim"], 15)


def signal_tkill(t):
    """tkill another process"""
    call(200, 130, t["victim"], 15)


def signal_tgkill(t):
    """tgkill another process"""
    call(234, 131, t["victim"], t["victim"], 15)


def signal_queue(t):
    """rt_sigqueueinfo"""
    information = struct.pack("iii", 15, 0, -1) + b"\0" * 116
    call(129, 138, t["victim"], 15, information)


def signal_pidfd(t):
    """pidfd_open and pidfd_send_signal"""
    fd = call(434, 434, t["victim"], 0)
    call(424, 424, fd, 15, 0, 0)


def steal_descriptor(t):
    """pidfd_getfd from another process"""
    fd = call(434, 434, t["victim"], 0)
    call(438, 438, fd, 0, 0)
    return "BREACH: it has a descriptor of another process"


def signal_owner(t):
    """fcntl(F_SETOWN) to another process"""
    import fcntl

    fcntl.fcntl(0, fcntl.F_SETOWN, t["victim"])
    return "BREACH: it may have signals sent to others"


def limits_of_others(t):
    """prlimit of another process"""
    call(302, 261, t["victim"], 7, 0, ctypes.create_string_buffer(16))
    return "BREACH: it may"


def limits_of_its_own(t):
    """setrlimit of its own"""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard - 1))
    return "BREACH: it may set limits"


def priority_of_others(t):
    """setpriority of another process"""
    os.setpriority(os.PRIO_PROCESS, t["victim"], 7)
    return "BREACH: it may"


def fork(t):
    """fork"""
    pid = os.fork()
    if pid == 0:
        import time

        time.sleep(20)
        os._exit(0)
    return f"started {pid}"


def fork_vfork(t):
    """posix_spawn"""
    return f"started {os.posix_spawn('/bin/sleep', ['sleep', '20'], {})}"


def clone_process(t):
    """clone without CLONE_THREAD"""
    return reach(56, 220, 0x800, 0, 0, 0, 0)  # CLONE_SIGHAND alone, which makes no sense and no process


def clone_table(t):
    """clone without CLONE_FILES"""
    return reach(56, 220, 0x10000, 0, 0, 0, 0)  # without CLONE_SIGHAND no system does it


def anonymous_memory(t):
    """mmap of shared memory without a file"""
    call(9, 222, 0, 1 << 20, 3, 0x21, -1, 0)
    return "BREACH: memory that no limit counts"


def continue_itself(t):
    """SIGCONT to itself"""
    os.kill(os.getpid(), 18)
    return "BREACH: it cannot be stopped"


def packets(t):
    """fcntl(F_SETFL, O_DIRECT) on its pipe"""
    import fcntl

    fcntl.fcntl(4, fcntl.F_SETFL, fcntl.fcntl(4, fcntl.F_GETFL) | os.O_DIRECT)
    return "BREACH: each byte costs who reads it a call"


def clone3(t):
    """clone3"""
    return reach(435, 435, 0, 0)


def execute(t):
    """execve"""
    os.execv("/bin/sh", ["sh", "-c", f"cat {t['secret']} >&4; echo >&4; sleep 1"])


def execute_memory(t):
    """memfd_create, then execve"""
    fd = call(319, 279, b"x", 0)
    os.write(fd, open("/bin/true", "rb").read())
    return "BREACH: it has a program in memory"


def execute_at(t):
    """execveat"""
    return reach(322, 281, -1, 0, 0, 0, 0)


def io_uring(t):
    """io_uring_setup"""
    return reach(425, 425, 1, 0)


def bpf(t):
    """bpf"""
    return reach(321, 280, 0, 0, 0)


def perf(t):
    """perf_event_open"""
    return reach(298, 241, 0, 0, -1, -1, 0)


def userfaultfd(t):
    """userfaultfd"""
    return reach(323, 282, 0xFFFF)


def keyctl(t):
    """keyctl"""
    return reach(250, 219, 0, -3, 0, 0, 0)


def add_key(t):
    """add_key"""
    return reach(248, 217, 0, 0, 0, 0, 0)


def mount(t):
    """mount"""
    return reach(165, 40, 0, 0, 0, 0, 0)


def move_mount(t):
    """open_tree"""
    return reach(428, 428, -1, 0, 0)


def chroot(t):
    """chroot"""
    return reach(161, 51, 0)


def unshare_user(t):
    """unshare(CLONE_NEWUSER)"""
    return reach(272, 97, 0x10000000)


def setns(t):
    """setns"""
    return reach(308, 268, -1, 0)


def make_device(t):
    """mknod of a device"""
    os.mknod(f"{t['workspace']}/device", 0o020666, os.makedev(1, 8))


def make_pipe(t):
    """mkfifo in the workspace"""
    os.mkfifo(f"{t['workspace']}/fifo")


def make_link(t):
    """symlink in the workspace"""
    os.symlink(t["secret"], f"{t['workspace']}/link")


def make_hard_link(t):
    """link of the secret into the workspace"""
    os.link(t["secret"], f"{t['workspace']}/hard")


def swap_directories(t):
    """renameat2(RENAME_EXCHANGE) of the secret with a file of the workspace"""
    open(f"{t['workspace']}/own", "w").write("x")
    call(316, 276, -100, t["secret"].encode(), -100, f"{t['workspace']}/own".encode(), 2)
    return open(f"{t['workspace']}/own").read()


def change_mode(t):
    """chmod of the secret"""
    os.chmod(t["secret"], 0o666)


def change_owner(t):
    """chown of the secret"""
    os.chown(t["secret"], 12345, 12345)


def change_times(t):
    """utimensat of the secret"""
    os.utime(t["secret"], (1, 1))


def change_attribute(t):
    """setxattr of the secret"""
    os.setxattr(t["secret"], "user.attack", b"x")


def truncate(t):
    """truncate of the secret"""
    os.truncate(t["secret"], 0)


def open_and_truncate(t):
    """open of the secret for reading, with O_TRUNC"""
    os.open(t["secret"], os.O_RDONLY | os.O_TRUNC)


def delete(t):
    """unlink of the secret"""
    os.unlink(t["secret"])


def watch(t):
    """inotify_add_watch of the outside"""
    fd = call(294, 26, 0)
    call(254, 27, fd, t["outside"].encode(), 0x100)
    return "BREACH: it hears what happens there"


def shared_memory(t):
    """shmget: memory shared between processes"""
    return reach(29, 194, 0x6B6D63, 0, 0)


def message_queue(t):
    """mq_open"""
    return reach(240, 180, 0, 0, 0, 0)


def become_root(t):
    """setresuid"""
    return reach(117, 147, 0, 0, 0)


def load_module(t):
    """finit_module"""
    return reach(313, 273, -1, 0, 0)


def set_host_name(t):
    """sethostname"""
    return reach(170, 161, 0, -1)


def outlive(t):
    """prctl: outlive the parent"""
    call(157, 167, 1, 0, 0, 0, 0)
    return "BREACH: the parent's end is not its own any more"


def dumpable(t):
    """prctl: let others debug it"""
    call(157, 167, 4, 1, 0, 0, 0)
    return "BREACH: it may"


def terminal(t):
    """ioctl(TIOCSTI): type at a terminal"""
    call(16, 29, 0, 0x5412, 0)
    return "BREACH: it may"


def write_above(t):
    """write above the workspace"""
    open(f"{t['above']}/packaging.py", "w").write("x")


def write_above_after_chmod(t):
    """chmod the folder above, then write"""
    os.chmod(t["above"], 0o777)
    write_above(t)


def write_above_after_acl(t):
    """setxattr of an access list of the folder above, then write"""
    entries = [(1, 7, -1), (4, 7, -1), (0x20, 7, -1)]  # owner, group and others: all rights
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(t["above"], "system.posix_acl_access", access)
    write_above(t)


def write_offered(t):
    """write a file of offered tools"""
    open(f"{t['offered']}/index.json", "w").write("x")


def replace_offered(t):
    """put a file in place of one of offered tools"""
    open(f"{t['workspace']}/own", "w").write("x")
    os.rename(f"{t['workspace']}/own", f"{t['offered']}/index.json")


def rename_workspace(t):
    """rename the workspace itself"""
    os.rename(t["workspace"], f"{t['above']}/elsewhere")


def sparse_file(t):
    """a sparse file of 100 GB"""
    fd = os.open(f"{t['workspace']}/sparse", os.O_CREAT | os.O_WRONLY)
    os.ftruncate(fd, 100 << 30)


def preallocate(t):
    """fallocate behind the end of a file"""
    fd = os.open(f"{t['workspace']}/ahead", os.O_CREAT | os.O_WRONLY)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, 1, 0, 3 << 30) != 0:  # FALLOC_FL_KEEP_SIZE
        raise OSError(ctypes.get_errno(), "fallocate")


def open_files(t):
    """2,000 open files"""
    import contextlib

    with contextlib.ExitStack() as stack:
        for _ in range(2000):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        return "BREACH: it had 2,000"


def private_memory(t):
    """8 GB of private memory"""
    import mmap

    kept = mmap.mmap(-1, 8 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return f"BREACH: it has {len(kept)} bytes"


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


if __name__ == "__main__":
    known = json.loads(sys.argv[1])
    titles = {value.__doc__: name for name, value in ATTACKS.items()}
    waiting = b""
    while chunk := os.read(3, 4096):
        *lines, waiting = (waiting + chunk).split(b"\n")
        for line in lines:
            answer = list(titles) if line == b"list" else attempt(titles.get(line.decode(), "control"), known)
            os.write(4, json.dumps(answer).encode() + b"\n")
