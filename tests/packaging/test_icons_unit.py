"""The server's icon is the kernelspec's logo."""

from __future__ import annotations

import io
from pathlib import Path

import resvg_py
from PIL import Image, ImageChops

import kernelmcp_kernel
from kernelmcp.mcp_server.tools.icons import SERVER


def drawn(svg: str) -> Image.Image:
    return Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg, width=128, height=128)))).convert("RGBA")


def test_the_servers_icon_is_the_logo_of_the_kernelspec() -> None:
    logo = Path(kernelmcp_kernel.__file__).parent / "kernelspec" / "logo-svg.svg"
    difference = ImageChops.difference(drawn(SERVER), drawn(logo.read_text("utf-8")))
    assert max(high for _, high in difference.getextrema()) < 16
