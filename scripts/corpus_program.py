"""Runs a program of the corpus and tells what it did: natively for each line of JSON on stdin, and in a cell here.

It must run in any Python, with what the program itself needs.
"""

import base64
import contextlib
import doctest
import io
import json
import random
import sys
import time
import zlib

MAX_CHARS = 100_000
DPI = 50


def run_program(source, kind):
    """What the program printed, how it ended, its CPU seconds, and its figures in grey."""
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
    """Of each open figure its width and height at DPI, and its grey pixels (zlib, base64)."""
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
        figure.dpi = DPI
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba(), dtype=float)[..., :3]
        grey = pixels.mean(axis=2).astype(np.uint8)
        packed = base64.b64encode(zlib.compress(grey.tobytes())).decode()
        found.append([grey.shape[1], grey.shape[0], packed])
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
