"""Draws docs/session.svg from what `kernelmcp demo` prints: `kernelmcp demo | python scripts/session_picture.py`."""

import html
import sys
from pathlib import Path

LINE_PIXELS, CHARACTER_PIXELS, COLUMNS = 17, 8, 88
COLOURS = {"  >": "#8b949e", "    ~": "#56d364", "    --": "#8b949e"}
SHOWN = ("Starting", "1.", "2.", "3.", "5.")


def chosen(text: str) -> list[str]:
    """Steps without the longest ones."""
    steps = [step for step in ("\n" + text).split("\n\n") if step.strip().startswith(SHOWN)]
    return "\n\n".join(step.strip("\n") for step in steps).splitlines()


def main() -> None:
    lines = ["$ kernelmcp demo", "", *chosen(sys.stdin.read())]
    rows = []
    for number, line in enumerate(lines):
        colour = next((value for start, value in COLOURS.items() if line.startswith(start)), "#e6edf3")
        weight = "bold" if line[:1].strip() else "normal"
        text = html.escape(line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "...")
        y = (number + 2) * LINE_PIXELS
        rows.append(f'<text x="16" y="{y}" fill="{colour}" font-weight="{weight}" xml:space="preserve">{text}</text>')
    width, height = COLUMNS * CHARACTER_PIXELS + 32, (len(lines) + 2) * LINE_PIXELS
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="13">'
    box = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    Path(__file__).parent.parent.joinpath("docs", "session.svg").write_text("\n".join([head, box, *rows, "</svg>\n"]))


if __name__ == "__main__":
    main()
