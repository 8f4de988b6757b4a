"""Plots as clients of the server see them, with the real matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult

from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .support import Connect

pytestmark = pytest.mark.anyio

# The second of three figures is drawn for ever, until `ends` is set.
PLOTS = """
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
ends = []
class Endless(Line2D):
    def draw(self, renderer):
        while not ends:
            pass
def plot():
    for number in range(3):
        plt.figure(); plt.plot([1, 2])
        if number == 1:
            plt.gca().add_line(Endless([1], [1]))
kept = 42
"""
ANIMATION = """
from matplotlib.animation import FuncAnimation
from IPython.display import HTML
figure, axes = plt.subplots()
(line,) = axes.plot([0, 1], [0, 1])
html = FuncAnimation(figure, lambda number: [line.set_ydata([0, number])], frames=3).to_jshtml()
plt.close()
HTML(html)
"""


@pytest.fixture
def environment(kernelspec: str) -> Iterator[dict[str, str]]:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has packages of its own")
    with unpacked_home() as home:
        yield {"KERNELMCP_HOME": str(home), "KERNELMCP_PACKAGES__PYODIDE_URL": str(pyodide_folder())}


async def run(client: Client, code: str, **more: object) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, **more})


def pictures(result: CallToolResult) -> list[Any]:
    return [block for block in result.content if block.type == "image"]


@pytest.mark.slow
async def test_a_time_limit_while_figures_are_drawn_keeps_them_and_all_state(
    connect: Connect, environment: dict[str, str]
) -> None:
    async with connect(environment=environment) as client:
        await run(client, PLOTS)
        result = await run(client, "plot()", timeout=8)
        text = result.content[0].text
        found = result.structured_content
        assert (found["status"], found["exit_code"], found["state_lost"]) == ("timeout", 124, False)
        assert "1 of 3 figures was drawn. 2 are still open (number 2, 3)" in text
        assert "[The cell ran into its time limit and was interrupted. All variables are kept.]" in text
        assert "is complete" not in text
        assert len(pictures(result)) == 1

        assert (await run(client, "kept, plt.get_fignums()")).structured_content["result"] == "(42, [2, 3])"
        result = await run(client, "ends.append(1); plt.show()")
        assert (result.structured_content["status"], len(pictures(result))) == ("ok", 2)

        # What is drawn smaller, or in another form, is a picture all the same.
        result = await run(client, "plt.figure(figsize=(40, 40), dpi=200); plt.plot([1, 2]);")
        assert ("is shown at 51 dpi instead of 200" in result.content[0].text, len(pictures(result))) == (True, 1)
        result = await run(client, "%config InlineBackend.figure_format = 'svg'\nplt.plot([1, 2]);")
        assert [block.mime_type for block in pictures(result)] == ["image/png"]

        result = await run(client, ANIMATION)
        assert "<animation of 3 frames, whose HTML plays it; the first one is shown>" in result.content[0].text
        [link] = [block for block in result.content if block.type == "resource_link"]
        assert (len(pictures(result)), link.mime_type) == (1, "text/html")
