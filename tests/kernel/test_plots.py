"""Figures of matplotlib, with the real one: drawn within the cell's time, in a size that fits, and as in Jupyter."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel, Ran

# A figure that is never drawn to its end, unless it is told to be.
ENDLESS = """
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

class Endless(Line2D):
    ends = False
    def draw(self, renderer):
        if not Endless.ends:
            print('go', flush=True)
        while not Endless.ends:
            pass

def plot_three():
    for number in range(3):
        plt.figure()
        plt.plot([1, 4, 9])
        if number == 1:
            plt.gca().add_line(Endless([1], [1]))

kept = 42
"""
OPEN = (
    "1 of 3 figures was drawn. 2 are still open (number 2, 3): in the next cell plt.show() draws what is open, "
    "plt.figure(2).savefig('2.png') saves one, and plt.close('all') drops them"
)


def settings() -> dict[str, str]:
    return {"KERNELMCP_PACKAGES": json.dumps({"pyodide_url": str(pyodide_folder())})}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with unpacked_home() as home:
        yield home


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[Kernel]:
    with running_kernel(KERNELMCP_HOME=str(home), **settings()) as running:
        ran = running.prepare(ENDLESS)
        assert ran.status == "ok", ran.error
        yield running


@pytest.fixture(autouse=True)
def as_at_the_beginning(kernel: Kernel) -> Iterator[None]:
    yield
    kernel.run("plt.rcdefaults(); plt.close('all'); Endless.ends = False")


def shown(ran: Ran, mime: str = "image/png") -> list[Any]:
    bundles = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    return [bundle[mime] for bundle in bundles if mime in bundle]


def sides(ran: Ran) -> list[tuple[int, int]]:
    headers = [base64.b64decode(picture)[16:24] for picture in shown(ran)]
    return [(int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) for header in headers]


# -- drawing is part of the cell


def test_an_interrupt_while_a_cells_figures_are_drawn_keeps_those_that_were_not(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("plot_three()")
    assert (ran.error, ran.state_lost, len(shown(ran))) == (f"KeyboardInterrupt: {OPEN}", False, 1)
    assert ran.reply["content"]["traceback"] == [f"KeyboardInterrupt: {OPEN}"]
    assert kernel.run("kept, plt.get_fignums()").result == "(42, [2, 3])"
    assert (
        kernel.run("plt.figure(3).savefig('3.png'); plt.close(3); open('3.png', 'rb').read(4)").result == "b'\\x89PNG'"
    )
    ran = kernel.run("Endless.ends = True; plt.show(); plt.get_fignums()")
    assert (ran.result, len(shown(ran))) == ("[]", 1)


def test_a_figure_that_was_drawn_is_closed_if_the_interrupt_comes_while_it_is_closed(kernel: Kernel) -> None:
    code = (
        "from matplotlib._pylab_helpers import Gcf\nstock = Gcf.destroy\n"
        "def interrupted(manager):\n    Gcf.destroy = stock\n    raise KeyboardInterrupt\n"
        "Gcf.destroy = interrupted\nfor _ in range(2):\n    plt.figure(); plt.plot([1, 2])"
    )
    ran = kernel.run(code)
    assert (ran.error[:38], len(shown(ran))) == ("KeyboardInterrupt: 1 of 2 figures was ", 1)
    assert kernel.run("plt.get_fignums()").result == "[2]"


def test_an_interrupt_of_plt_show_keeps_them_too(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("plot_three()\nplt.show()\nprint('never')")
    assert (ran.error, len(shown(ran))) == ("KeyboardInterrupt: ", 1)
    assert ran.text("stderr") == f"{OPEN}\n"
    ran = kernel.run("Endless.ends = True; plt.show()")
    assert len(shown(ran)) == 2


def test_an_interrupt_of_a_cell_that_awaits_keeps_them_too(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("import asyncio\nawait asyncio.sleep(0)\nplot_three()")
    assert (ran.error, len(shown(ran))) == (f"KeyboardInterrupt: {OPEN}", 1)
    assert kernel.run("plt.get_fignums()").result == "[2, 3]"


def test_what_an_interrupted_cell_has_plotted_is_shown(kernel: Kernel) -> None:
    ran = kernel.interrupt_once_it_prints("plt.plot([1, 2]); print('go', flush=True)\nwhile True: pass")
    assert (ran.error, len(shown(ran)), ran.text("stderr")) == ("KeyboardInterrupt: ", 1, "")
    assert kernel.run("plt.get_fignums()").result == "[]"


def test_an_error_in_one_figure_keeps_no_other(kernel: Kernel) -> None:
    code = "class Broken(Line2D):\n    def draw(self, renderer): raise ValueError('broken')\n"
    ran = kernel.run(code + "plt.figure().add_artist(Broken([1], [1])); plt.figure(); plt.plot([1]);")
    assert (ran.status, len(shown(ran))) == ("ok", 1)
    assert kernel.run("plt.get_fignums()").result == "[]"


def test_figures_that_are_left_open_are_not_drawn_after_each_cell(kernel: Kernel) -> None:
    kernel.interrupt_once_it_prints("plot_three()")
    ran = kernel.run("'next'")
    assert (ran.result, ran.text()) == ("'next'", "")


def test_figures_stay_open_where_the_user_wants_it(kernel: Kernel) -> None:
    kernel.run("%config InlineBackend.close_figures = False")
    assert len(shown(kernel.run("plt.plot([1]);"))) == 1
    assert not shown(kernel.run("kept"))
    ran = kernel.run("plt.figure(); plt.plot([2]); plt.get_fignums()")
    assert (ran.result, len(shown(ran))) == ("[1, 2]", 1)
    kernel.run("%config InlineBackend.close_figures = True")


# -- their size


@pytest.mark.parametrize(("inches", "dpi"), [((20, 15), 300), ((40, 40), 200)])
def test_a_figure_of_too_many_pixels_is_drawn_with_fewer_and_saved_whole(
    kernel: Kernel, inches: tuple[int, int], dpi: int
) -> None:
    ran = kernel.run(f"figure = plt.figure(figsize={inches}, dpi={dpi}); plt.plot([1, 2]);")
    [(width, height)] = sides(ran)
    assert 1024 <= max(width, height) <= 2048
    lowered = round(2048 / max(inches))
    assert ran.text("stderr") == (
        f"Figure 1 ({inches[0]} x {inches[1]} inches) is shown at {lowered} dpi instead of {dpi}, so that its picture "
        "fits; savefig('NAME.png') writes it whole\n"
    )
    assert kernel.run("float(figure.dpi)").result == f"{dpi}.0"


def test_what_lies_far_outside_of_a_figure_does_not_make_its_picture_too_large(kernel: Kernel) -> None:
    ran = kernel.run("plt.plot([1, 2]); plt.text(20, 1.5, 'far');")
    [(width, _)] = sides(ran)
    assert 1024 <= width <= 2048
    assert "is shown at" in ran.text("stderr")


def test_a_figure_that_fits_is_as_it_was(kernel: Kernel) -> None:
    ran = kernel.run("plt.figure(figsize=(8, 6), dpi=200); plt.plot([1, 2]);")
    assert (max(sides(ran)[0]) > 1024, ran.text("stderr")) == (True, "")
    kernel.run("%config InlineBackend.figure_format = 'retina'")
    [(width, _)] = sides(kernel.run("plt.plot([1, 2]);"))
    kernel.run("%config InlineBackend.figure_format = 'png'")
    assert width > 1000


# -- fonts


def test_a_font_that_is_not_here_is_said_once_with_what_to_do(kernel: Kernel) -> None:
    plot = "plt.rcParams['font.family'] = ['Garamond', 'Futura']\nplt.plot([1]); plt.title('a'); plt.show()"
    said = kernel.run(plot).text("stderr")
    assert said == (
        "findfont: Font family 'Garamond', 'Futura' not found; DejaVu Sans is used. To use another font, put its .ttf "
        "or .otf file into /workspace and call matplotlib.font_manager.fontManager.addfont('FILE')\n"
    )
    assert kernel.run(plot).text("stderr") == ""
    other = plot.replace("['Garamond', 'Futura']", "'Papyrus'")
    assert kernel.run(other).text("stderr") == "findfont: Font family 'Papyrus' not found; DejaVu Sans is used\n"


def test_a_family_of_which_no_font_is_here_is_said_once(kernel: Kernel) -> None:
    plot = "plt.rcParams['font.family'] = 'serif'; plt.rcParams['font.serif'] = ['Bodoni']\nplt.plot([1]); plt.show()"
    assert kernel.run(plot).text("stderr").count("Generic family 'serif' not found") == 1
    assert kernel.run(plot).text("stderr") == ""


@pytest.mark.parametrize("font", ["Arial", "Helvetica", "Times", "Times New Roman", "Courier", "Courier New"])
def test_a_font_that_everybody_asks_for_has_a_stand_in(kernel: Kernel, font: str) -> None:
    ran = kernel.run(f"plt.rcParams['font.family'] = {font!r}\nplt.plot([1]); plt.title('a'); plt.show()")
    assert (len(shown(ran)), ran.text("stderr")) == (1, "")


def test_figures_are_shown_after_xkcd_around_the_first_one(home: Path) -> None:
    with running_kernel(KERNELMCP_HOME=str(home), **settings()) as kernel:
        kernel.run("import matplotlib.pyplot as plt")
        assert len(shown(kernel.run("with plt.xkcd():\n    plt.plot([1]); plt.show()"))) == 1
        assert len(shown(kernel.run("plt.plot([1]);"))) == 1
        assert kernel.run("plt.get_fignums()").result == "[]"


def test_xkcd_has_its_font(kernel: Kernel) -> None:
    ran = kernel.run("with plt.xkcd():\n    plt.plot([1]); plt.title('a'); plt.show()")
    assert (len(shown(ran)), ran.text("stderr")) == (1, "")
    path = kernel.run("from matplotlib.font_manager import findfont; findfont('xkcd')").result or ""
    assert path.endswith("Humor-Sans.ttf'")


def test_a_font_of_the_users_comes_before_its_stand_in(kernel: Kernel) -> None:
    add = """
from fontTools.ttLib import TTFont
from matplotlib.font_manager import findfont, fontManager
font = TTFont(findfont('DejaVu Serif'))
for record in font['name'].names:
    if record.nameID in (1, 16):
        record.string = 'Verdana'
font.save('verdana.ttf')
fontManager.addfont('verdana.ttf')
findfont('Verdana')
"""
    assert (kernel.run(add).result or "").endswith("verdana.ttf'")


def test_characters_that_a_font_lacks_are_one_warning(kernel: Kernel) -> None:
    plot = "plt.title('\\u4e2d\\u6587\\u6807\\u9898'); plt.plot([1]); plt.show()"
    said = kernel.run(plot).text("stderr")
    assert said.count("UserWarning") == 1
    assert "Glyph 20013 (\\N{CJK UNIFIED IDEOGRAPH-4E2D}) missing from font(s) DejaVu Sans" in said
    assert "addfont('FILE')" in said
    assert "%pip install matplotlib-fontja" in said
    assert "kernelmcp_guest" not in said
    assert kernel.run(plot).text("stderr") == ""
    assert "matplotlib-fontja" not in kernel.run("plt.title('\\U0001f600', family='DejaVu Serif'); plt.show()").text(
        "stderr"
    )


@pytest.mark.slow
def test_a_package_brings_the_font_for_japanese_and_much_of_chinese(home: Path) -> None:
    with running_kernel(KERNELMCP_HOME=str(home), **settings()) as kernel:
        assert kernel.run("%pip install -q matplotlib-fontja").status == "ok"
        kernel.run("import matplotlib.pyplot as plt, matplotlib_fontja")
        ran = kernel.run("plt.title('\\u65e5\\u672c\\u8a9e \\u4e2d\\u6587'); plt.plot([1]);")
        assert (len(shown(ran)), ran.text("stderr")) == (1, "")


# -- as in Jupyter


def test_a_figure_as_svg(kernel: Kernel) -> None:
    kernel.run("%config InlineBackend.figure_format = 'svg'")
    (svg,) = shown(kernel.run("plt.plot([1]);"), "image/svg+xml")
    kernel.run("%config InlineBackend.figure_format = 'png'")
    assert "<svg" in svg


@pytest.mark.parametrize("gui", ["widget", "notebook", "qt", "tk"])
def test_a_backend_that_needs_a_screen_is_one_line_and_figures_are_pictures(kernel: Kernel, gui: str) -> None:
    ran = kernel.run(f"%matplotlib {gui}\nplt.plot([1]);")
    where = "a page" if gui in ("widget", "notebook") else "a screen"
    assert (ran.status, len(shown(ran))) == ("ok", 1)
    assert ran.text() == ""
    assert ran.text("stderr") == (
        f"%matplotlib {gui} needs {where} where somebody can click, and there is none: figures are shown as pictures, "
        "as with %matplotlib inline\n"
    )


@pytest.mark.parametrize("gui", ["", "auto", "inline"])
def test_matplotlib_chooses_pictures(kernel: Kernel, gui: str) -> None:
    ran = kernel.run(f"%matplotlib {gui}\nplt.plot([1]);")
    assert (ran.status, len(shown(ran)), ran.text("stderr")) == ("ok", 1, "")
    assert "inline" in (kernel.run("plt.get_backend()").result or "")


ANIMATION = """
from matplotlib.animation import FuncAnimation
figure, axes = plt.subplots()
(line,) = axes.plot([0, 1], [0, 1])
animation = FuncAnimation(figure, lambda number: [line.set_ydata([0, number])], frames=3)
"""


def test_an_animation_is_its_first_frame_and_its_html(kernel: Kernel) -> None:
    ran = kernel.run(
        ANIMATION + "from IPython.display import HTML\nhtml = animation.to_jshtml(); plt.close(); HTML(html)"
    )
    assert ran.status == "ok", ran.error
    first, playing = [message["content"]["data"] for message in ran.outputs]
    assert sides(ran) == [(640, 480)]
    assert first["text/plain"] == "<the first frame>"
    assert "frames[2]" in playing["text/html"]
    assert ran.result == "<animation of 3 frames, whose HTML plays it; the first one is shown>"
    assert kernel.run("isinstance(html, str), open('a.html', 'w').write(html) == len(html)").result == "(True, True)"
    ran = kernel.run("plt.rcParams['animation.html'] = 'jshtml'\nanimation")
    assert len(shown(ran)) == 1


def test_a_video_says_what_can_be_written(kernel: Kernel) -> None:
    ran = kernel.run(ANIMATION + "animation.save('a.mp4')")
    no_video = "ValueError: no video can be written here, because there is no ffmpeg"
    assert ran.error == f"{no_video}: save the animation as a GIF, with .save('a.gif')"
    assert kernel.run("animation.to_html5_video()").error.startswith(f"{no_video}: to_jshtml()")
    assert kernel.run("animation.save('a.gif'); open('a.gif', 'rb').read(3)").result == "b'GIF'"


@pytest.mark.parametrize("call", ["plt.ginput(1)", "plt.waitforbuttonpress()"])
def test_nobody_can_click(kernel: Kernel, call: str) -> None:
    ran = kernel.run(f"plt.plot([1]); {call}")
    assert ran.error == (
        "NotImplementedError: nobody can click or press a key in a figure here, which is a picture: write the "
        "coordinates into the code"
    )


@pytest.mark.parametrize("magic", ["%matplotlib inline", "%pylab inline"])
def test_the_magics_of_plots_bring_matplotlib(home: Path, magic: str) -> None:
    with running_kernel(KERNELMCP_HOME=str(home), **settings()) as kernel:
        ran = kernel.run(f"{magic}\nimport matplotlib.pyplot as plt\nplt.plot([1]);")
        assert (ran.status, len(shown(ran))) == ("ok", 1), ran.error
        assert kernel.run("import sys; 'pandas' in sys.modules").result == "False"


def test_a_program_with_another_backend_and_style_leaves_the_notebooks(home: Path) -> None:
    plot = """
        import matplotlib, os
        os.environ["MPLBACKEND"] = "svg"
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.style.use("ggplot")
        plt.rcParams["figure.dpi"] = 33
        plt.plot([1, 4, 9])
        plt.savefig("plot.png")
        print(plt.get_backend())"""
    with running_kernel(KERNELMCP_HOME=str(home), **settings()) as kernel:
        kernel.run(f"open('plot.py', 'w').write({textwrap.dedent(plot)!r})")
        assert kernel.run("!python plot.py").text() == "Agg\n"
        kernel.run("import matplotlib.pyplot as plt")
        assert len(shown(kernel.run("plt.plot([1]);"))) == 1
        style = "plt.get_backend(), plt.rcParams['figure.dpi'], plt.rcParams['axes.facecolor']"
        assert kernel.run(style).result == "('module://matplotlib_inline.backend_inline', 100.0, 'white')"
        kernel.run("plt.rcParams['figure.dpi'] = 90")
        assert kernel.run("!python plot.py").text() == "Agg\n"
        assert len(shown(kernel.run("plt.plot([1]);"))) == 1
        assert kernel.run(style).result == "('module://matplotlib_inline.backend_inline', 90.0, 'white')"
        kernel.run("plt.switch_backend('agg')")
        assert kernel.run("!python plot.py").text() == "Agg\n"
        assert kernel.run("plt.get_backend()").result == "'agg'"
