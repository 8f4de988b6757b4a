"""Icons of the server and its tools: SVG in `data:` addresses, small because each list of the tools contains them."""

from urllib.parse import quote

from mcp_types import Icon

from kernelmcp.mcp_server.tools.contract_tool import ContractTool

_SVG = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {size} {size}'>{content}</svg>"
# The kernelspec's logo, in fewer characters; scripts/bundle draws the bundle's icon from it.
SERVER = _SVG.format(
    size=64,
    content="<rect x='3' y='3' width='58' height='58' rx='12' fill='#1d2b3a'/>"
    "<path d='M14 26l18-10 18 10v20l-18 10-18-10zl18 10 18-10M32 36v20' fill='none' stroke='#f2b84b' stroke-width='4' "
    "stroke-linejoin='round'/><circle cx='32' cy='14' r='6' fill='#5fd0c5'/>",
)
# One path each, in a color that is visible on light and dark.
CODE, SESSION, PACKAGE, FILE = (
    _SVG.format(size=8, content=f"<path fill='#e09b2d' d='{path}'/>")
    for path in (
        "M2 1l5 3-5 3z",
        "M0 1h5v4h-5zM3 6h3v-4h2v5h-5z",
        "M0 1h8v2h-8zM1 4h2v1h2v-1h2v4h-6z",
        "M1 0h3v3h3v5h-6zM5 0l2 2h-2z",
    )
)


def icon(svg: str) -> Icon:
    return Icon(src="data:image/svg+xml," + quote(svg, safe="/:='"))


def with_icon(svg: str, tools: list[ContractTool]) -> list[ContractTool]:
    shown = [icon(svg)]
    for tool in tools:
        tool.icons = shown
    return tools
