"""Makes docs/views.png, each kind of output once, and docs/conversation.png, the first of them, in a browser.

Needs Debian's chromium, and what tests need (`pip install -e '.[test]'`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from views_bench import client

from tests.prepared_home import unpacked_home
from tests.views.rig import chromium, host_page

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 800
# Of the cells, in the smaller picture.
SHOWN = 3
SETUP = """
%pip install -q plotly
import numpy as np, pandas as pd, matplotlib.pyplot as plt, plotly.graph_objects as go
random = np.random.default_rng(1)
"""
CELLS = {
    "table": """
trips = pd.DataFrame({
    "city": random.choice(["Lima", "Oslo", "Paris", "Rome"], 500),
    "days": random.integers(1, 15, 500),
    "price": random.normal(900, 250, 500).round(2),
})
trips.head(8)
""",
    "chart": """
mean = trips.groupby("city")["price"].mean().round()
go.Figure(go.Bar(x=mean.index, y=mean, text=mean), layout={"height": 260, "margin": {"t": 20, "b": 30}})
""",
    "text, HTML and a file": """
from IPython.display import HTML, display
print("\\x1b[1;32mtrained\\x1b[0m, epoch 3, \\x1b[38;5;208mloss 0.31\\x1b[0m")
display(HTML("<b>Report</b>: <span style='color: tomato'>4 cities</span>"))
trips.to_csv("trips.csv", index=False)
""",
    "picture": """
x = np.linspace(0, 10, 300)
figure, axes = plt.subplots(figsize=(7, 2.6))
for k in range(1, 5):
    axes.plot(x, np.sin(k * x / 2) / k, label=f"k = {k}")
axes.legend()
plt.show()
""",
    "long table": "trips",
    "error": "trips['country']",
    "nothing": "x = 1",
}


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kmv-") as folder, unpacked_home() as home:
        async with client(home, Path(folder)) as one, chromium() as browser, host_page(browser, one) as host:
            await one.call_tool("execute_code", {"code": SETUP})
            for name, code in CELLS.items():
                view = await host.run(code.strip())
                await view.marked("chart" if name == "chart" else "pixels")
                await host.page.wait_for_timeout(500)
            height = await host.page.evaluate("document.getElementById('chat').getBoundingClientRect().height")
            await host.page.set_viewport_size({"width": WIDTH, "height": int(height) + 24})
            await host.page.evaluate("scrollTo(0, 0)")
            await host.page.wait_for_timeout(1000)
            await host.page.screenshot(path=ROOT / "docs" / "views.png")
            await host.page.evaluate(
                f"[...document.querySelectorAll('.call')].slice({SHOWN}).forEach(call => call.remove())"
            )
            box = await host.page.evaluate("document.getElementById('chat').getBoundingClientRect().toJSON()")
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["height"] + 24}
            await host.page.screenshot(path=ROOT / "docs" / "conversation.png", clip=clip)


asyncio.run(main())
