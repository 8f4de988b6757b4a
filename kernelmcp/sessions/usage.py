"""Measures the memory of a process tree and the size of a directory. Blocking: called in worker threads."""

import os
from pathlib import Path


def tree_memory_mb(pid: int | None) -> float:
    """Resident memory of a process and its descendants, in MiB; 0 if it has exited."""
    if pid is None:
        return 0.0
    import psutil  # takes 20 ms of CPU, and no cell needs it

    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return round(total / 2**20, 1)


def directory_bytes(path: Path | None) -> int:
    """Total size of the files below a directory, in bytes; symbolic links are not followed."""
    total = 0
    pending = [path] if path is not None else []
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # deleted meanwhile
            continue
    return total
