"""Numbers of the system calls that a guest's seccomp filter knows, by machine. From Linux's syscall tables.

Excludes truncate(2), which Landlock covers only from version 3 on, and for which Node opens the file.
"""

from __future__ import annotations

# fmt: off
X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21,
    "sched_yield": 24, "mremap": 25, "msync": 26, "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35,
    "getpid": 39, "sendfile": 40, "clone": 56, "execve": 59, "exit": 60, "kill": 62, "uname": 63, "fcntl": 72,
    "flock": 73, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78, "getcwd": 79,
    "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88,
    "readlink": 89, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "umask": 95,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getppid": 110, "capget": 125, "sigaltstack": 131, "utime": 132, "statfs": 137,
    "fstatfs": 138, "sched_getparam": 143, "sched_getscheduler": 145, "prctl": 157, "arch_prctl": 158,
    "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218,
    "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234, "utimes": 235, "openat": 257,
    "mkdirat": 258, "fchownat": 260, "futimesat": 261, "newfstatat": 262, "unlinkat": 263, "renameat": 264,
    "linkat": 265, "symlinkat": 266, "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "ppoll": 271,
    "set_robust_list": 273, "utimensat": 280, "epoll_pwait": 281, "fallocate": 285, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "preadv": 295, "pwritev": 296, "prlimit64": 302, "getcpu": 309,
    "renameat2": 316, "getrandom": 318, "membarrier": 324, "copy_file_range": 326, "pkey_mprotect": 329,
    "pkey_alloc": 330, "pkey_free": 331, "statx": 332, "rseq": 334, "clone3": 435, "faccessat2": 439,
    "fchmodat2": 452,
}
AARCH64 = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24,
    "fcntl": 25, "ioctl": 29, "flock": 32, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37,
    "renameat": 38, "statfs": 43, "fstatfs": 44, "ftruncate": 46, "fallocate": 47, "faccessat": 48,
    "chdir": 49, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "openat": 56, "close": 57, "pipe2": 59,
    "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
    "pwrite64": 68, "preadv": 69, "pwritev": 70, "sendfile": 71, "ppoll": 73, "readlinkat": 78, "newfstatat": 79,
    "fstat": 80, "fsync": 82, "fdatasync": 83, "utimensat": 88, "capget": 90, "exit": 93, "exit_group": 94,
    "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "sched_getscheduler": 120, "sched_getparam": 121,
    "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "kill": 129, "tgkill": 131,
    "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160,
    "getrlimit": 163, "getrusage": 165, "umask": 166, "prctl": 167, "getcpu": 168, "gettimeofday": 169,
    "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178,
    "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "execve": 221, "mmap": 222,
    "fadvise64": 223, "mprotect": 226, "msync": 227, "madvise": 233, "prlimit64": 261, "renameat2": 276,
    "getrandom": 278, "membarrier": 283, "copy_file_range": 285, "pkey_mprotect": 288, "pkey_alloc": 289,
    "pkey_free": 290, "statx": 291, "rseq": 293, "clone3": 435, "faccessat2": 439, "fchmodat2": 452,
}
# Additional calls for a program with a network. Not listen and accept: it is only a client.
NETWORK_X86_64 = {
    "select": 23, "socket": 41, "connect": 42, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47,
    "shutdown": 48, "bind": 49, "getsockname": 51, "getpeername": 52, "setsockopt": 54, "getsockopt": 55,
    "pselect6": 270, "recvmmsg": 299, "sendmmsg": 307,
}
NETWORK_AARCH64 = {
    "pselect6": 72, "socket": 198, "bind": 200, "connect": 203, "getsockname": 204, "getpeername": 205, "sendto": 206,
    "recvfrom": 207, "setsockopt": 208, "getsockopt": 209, "shutdown": 210, "sendmsg": 211, "recvmsg": 212,
    "recvmmsg": 243, "sendmmsg": 269,
}
# fmt: on
