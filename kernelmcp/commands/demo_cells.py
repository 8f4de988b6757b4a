"""The cells that `kernelmcp demo` sends. Longer ones are files of `demo_guest/`, which run in the guest."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One step: what it shows, and the code."""

    title: str
    code: str
    timeout: float | None = None
    expected_status: str = "ok"


GUEST_DIRECTORY = Path(__file__).parent / "demo_guest"

CELLS = (
    Cell("The last expression is the result", "import sys\nsquares = [n * n for n in range(10)]\nsquares"),
    Cell("Variables stay between calls", "print('Python', sys.version.split()[0])\nsum(squares)"),
    Cell(
        "Output streams while the cell runs",
        "import time\nfor step in range(1, 6):\n    print('step', step, 'of 5')\n    time.sleep(0.3)",
    ),
    Cell("A picture comes back as a picture", (GUEST_DIRECTORY / "mandelbrot.py").read_text("utf-8") + "picture"),
    Cell("An error is a result", "def half(n):\n    return n / 0\n\nhalf(squares[3])", expected_status="error"),
    Cell("A cell that never ends is interrupted", "while True:\n    pass", timeout=1, expected_status="timeout"),
    Cell("And the variables are still there", "squares[-1], picture.width"),
)
