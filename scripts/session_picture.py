"""Draws docs/session.svg from what `kernelmcp demo` prints, with its chart:

kernelmcp demo | python scripts/session_picture.py demo.png
"""

import base64
import html
import re
import sys
from pathlib import Path

LINE_PIXELS, CHARACTER_PIXELS, COLUMNS = 17, 8, 96
COLOURS = {"  >": "#8b949e", "    ~": "#56d364", "    --": "#8b949e", "    refused": "#56d364"}
SHOWN = ("1.", "2.", "3.", "7.", "9.", "10.")
# Of each step, so that the chart has room.
MAX_LINES = 12
PICTURE = "    [image/png"
WIDTH, HEIGHT = 480, 250


def chosen(text: str) -> list[str]:
    """Steps without the longest ones, and without the middle of what is long."""
    found: list[str] = []
    for step in re.split(r"\n\n(?=\d+\. )", text.partition("\nNext: ")[0]):
        if step.lstrip().startswith(SHOWN):
            lines = [line for line in step.strip("\n").splitlines() if "IPython.core.display" not in line]
            found += [*lines[:3], "  > ...", *lines[-5:]] if len(lines) > MAX_LINES else lines
            found.append("")
    # The end of the demo is on the last step.
    return [line for line in found if "steps did what they should" not in line][:-2]


def main(picture: Path) -> None:
    lines = ["$ kernelmcp demo", "", *chosen(sys.stdin.read())]
    rows: list[str] = []
    y = LINE_PIXELS
    for line in lines:
        y += LINE_PIXELS
        if line.startswith(PICTURE):
            data = base64.b64encode(picture.read_bytes()).decode("ascii")
            place = f'x="48" y="{y - LINE_PIXELS + 6}" width="{WIDTH}" height="{HEIGHT}"'
            rows.append(f'<image {place} href="data:image/png;base64,{data}"/>')
            y += HEIGHT - LINE_PIXELS + 12
            continue
        colour = next((value for start, value in COLOURS.items() if line.startswith(start)), "#e6edf3")
        weight = "bold" if line[:1].strip() else "normal"
        text = html.escape(line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "...")
        rows.append(f'<text x="16" y="{y}" fill="{colour}" font-weight="{weight}" xml:space="preserve">{text}</text>')
    width, height = COLUMNS * CHARACTER_PIXELS + 32, y + LINE_PIXELS
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="13">'
    box = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    Path(__file__).parent.parent.joinpath("docs", "session.svg").write_text("\n".join([head, box, *rows, "</svg>\n"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
