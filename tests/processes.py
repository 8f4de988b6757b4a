"""Looking at processes that may end at any moment."""

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments, none when it has ended, also when nobody has waited for it yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it has not ended. One that nobody has waited for yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
