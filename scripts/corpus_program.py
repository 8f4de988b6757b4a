"""Runs a program of the corpus and tells what it did: natively for each line of JSON on stdin, and in a cell here.

It must run in any Python, with what the program itself needs.
"""

import contextlib
import doctest
import io
import itertools
import json
import random
import sys
import time

MAX_CHARS = 100_000
GRID = 12


def run_program(source, kind):
    """What the program printed, how it ended, its CPU seconds, and each of its figures as a grid of mean colours."""
    out, error = io.StringIO(), ""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "matplotlib" in sys.modules:
        import matplotlib.pyplot as plt

        plt.close("all")
        plt.show = lambda *_, **__: None
    hook, sys.displayhook = sys.displayhook, sys.__displayhook__
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(out):
            scope = {"__name__": "__main__"}
            if kind == "docstring":
                run_examples(source, scope)
            else:
                exec(compile(source, "<program>", "exec"), scope)
    except BaseException as raised:  # noqa: BLE001  # sys.exit too
        error = f"{type(raised).__name__}: {raised}"[:300]
    finally:
        sys.displayhook = hook
    seconds = time.process_time() - began
    return {"out": out.getvalue()[:MAX_CHARS], "error": error, "seconds": seconds, "figures": figures()}


def run_examples(text, scope):
    """The examples of a docstring, each printing its value or the kind of its error."""
    for example in doctest.DocTestParser().get_examples(text):
        try:
            exec(compile(example.source, "<program>", "single"), scope)
        except Exception as raised:  # noqa: BLE001
            print(type(raised).__name__)


def figures():
    """Of each open figure its size and a grid of its mean colours."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    found = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        shown, dpi = figure.canvas, figure.dpi
        canvas = FigureCanvasAgg(figure)
        figure.dpi = 50
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba(), dtype=float)[..., :3]
        rows, columns = (np.linspace(0, size, GRID + 1).astype(int) for size in pixels.shape[:2])
        across = list(itertools.pairwise(columns))
        cells = [[pixels[r0:r1, c0:c1].mean() for c0, c1 in across] for r0, r1 in itertools.pairwise(rows)]
        found.append([list(pixels.shape[:2]), [[round(float(cell), 1) for cell in row] for row in cells]])
        figure.dpi = dpi
        figure.set_canvas(shown)
    return found


if __name__ == "__main__":
    import importlib

    import matplotlib

    matplotlib.use("agg")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        print("@@" + json.dumps(run_program(asked["source"], asked["kind"])), flush=True)
