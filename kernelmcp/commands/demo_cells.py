"""The calls that `kernelmcp demo` makes. Longer cells are files in `demo_guest/`, which run in the guest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUEST_DIRECTORY = Path(__file__).parent / "demo_guest"
# Uses variables of the previous cells.
DRAWING = "\n\nchart = Image(stacked_bars(table), width=WIDTH)\nchart"
PACKAGE = "tabulate"
USING = f"from {PACKAGE} import tabulate\nprint(tabulate(table[:3], ['month', *products, 'sum'], 'github'))"
COUNTING = "import time\nfor step in range(1, 6):\n    print('step', step, 'of 5')\n    time.sleep(0.3)"
FAILING = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n\nmean([])"
ENDLESS = "while True:\n    pass"


@dataclass(frozen=True)
class Step:
    """One call: its title, and the request."""

    title: str
    arguments: dict[str, Any]
    tool: str = "execute_code"
    expected_status: str = "ok"
    needs_sandbox: bool = False
    live: bool = False
    """Its output is streamed."""
    needs_index: bool = False
    """It is skipped, and the demo continues, if no package index is reachable."""


def steps(secret_file: Path, port: int) -> list[Step]:
    """The steps of the session. The break-out targets a file with a secret and a port on this machine."""
    break_out = _guest("break_out.py").replace("{secret_file}", str(secret_file)).replace("{port}", str(port))
    file = {"path": "sales.csv", "content": _guest("sales.csv")}
    return [
        Step("A CSV file goes into the workspace", file, "write_file"),
        Step("A table is made of it, and its variables stay", {"code": _guest("sales_table.py")}),
        Step("A chart of the table comes back as a picture", {"code": _guest("sales_chart.py") + DRAWING}),
        Step("Output streams while a cell runs", {"code": COUNTING}, live=True),
        Step(
            "A package is installed", {"package_name": PACKAGE}, "install_package", needs_sandbox=True, needs_index=True
        ),
        Step("The package is used", {"code": USING}, needs_sandbox=True, needs_index=True),
        Step("Code that tries to break out gets nowhere", {"code": break_out}, needs_sandbox=True),
        Step("An error is a result", {"code": FAILING}, expected_status="error"),
        Step("A cell that never ends is interrupted", {"code": ENDLESS, "timeout": 1}, expected_status="timeout"),
        Step("And the variables are still there", {"code": "len(sales), round(max(row[-1] for row in table))"}),
    ]


def _guest(name: str) -> str:
    return (GUEST_DIRECTORY / name).read_text("utf-8")
