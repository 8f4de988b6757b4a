"""Draws docs/tour.png and docs/agent-session.png, from some cells of the notebooks as they are stored.

python scripts/notebook_pictures.py

Needs nbconvert and chromium. Long cells are shown without their middle.
"""

import io
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[1]
# The picture, the notebook, and its cells, counted from 1.
PICTURES = {
    "tour.png": ("tour.ipynb", (4, 5, 30, 31)),
    "agent-session.png": ("agent_session.ipynb", (2, 7, 8, 9, 14, 15, 18)),
}
MAX_LINES, FIRST_LINES = 9, 3
WIDTH, MAX_HEIGHT, MARGIN = 860, 4000, 12
DEADLINE_SECONDS = 120


def chosen(notebook: Any, numbers: tuple[int, ...]) -> Any:
    notebook.cells = [notebook.cells[number - 1] for number in numbers]
    for cell in notebook.cells:
        lines = cell.source.splitlines()
        if len(lines) > MAX_LINES and cell.cell_type == "code":
            cell.source = "\n".join([*lines[:FIRST_LINES], "...", *lines[FIRST_LINES + 1 - MAX_LINES :]])
    return notebook


def drawn(page: str) -> Image.Image:
    """The page, as far as there is something on it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "page.html").write_text(page, "utf-8")
        picture = Path(folder, "page.png")
        # Without its sandbox, because it has none as root; the page is our own.
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{MAX_HEIGHT}"]
        command = [browser, *options, f"--screenshot={picture}", Path(folder, "page.html").as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
        whole = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    box = ImageChops.difference(whole, Image.new("RGB", whole.size, (255, 255, 255))).getbbox()
    assert box is not None
    return whole.crop((0, max(0, box[1] - MARGIN), WIDTH, box[3] + MARGIN))


def main() -> None:
    for name, (file, numbers) in PICTURES.items():
        notebook = chosen(nbformat.read(ROOT / "notebooks" / file, as_version=4), numbers)
        page, _ = HTMLExporter().from_notebook_node(notebook)
        drawn(page).quantize(128).save(ROOT / "docs" / name, optimize=True)


if __name__ == "__main__":
    main()
