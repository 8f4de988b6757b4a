"""What commands print for a person: untrusted text, tables, errors, and questions on the terminal."""

import sys
from collections.abc import Sequence

from kernelmcp.output.sanitize import for_terminal


def plain(text: object) -> str:
    """An untrusted text on one line, without anything that a terminal acts on."""
    return for_terminal(str(text)).replace("\n", " ").replace("\t", " ")


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in padded)


def fail(text: str) -> int:
    """Print an error; returns the exit code."""
    sys.stderr.write(f"kernelmcp: {text}\n")
    return 1


def confirmed(question: str) -> bool:
    """Ask the person at the terminal."""
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
