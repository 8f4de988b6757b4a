"""`kernelmcp demo`, and what it and doctor say when something is not as it should be."""

import base64
import io
import re
from pathlib import Path
from typing import TextIO, cast

import pytest
from PIL import Image

from kernelmcp.commands import terminal_pictures
from kernelmcp.commands.demo_screen import Screen

# -- the picture ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "dumb", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "tmux-256color", "TERM_PROGRAM": "tmux", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1", "TMUX": "/tmp/x"}, None),
        ({}, None),
    ],
)
def test_the_terminal_is_known_by_its_environment(environ: dict[str, str], protocol: str | None) -> None:
    assert terminal_pictures.protocol(Terminal(), environ) == protocol
    assert terminal_pictures.protocol(io.StringIO(), environ) is None, "a file gets no picture"


def chart() -> Image.Image:
    picture = Image.new("RGB", (70, 45), (255, 255, 255))
    picture.paste((200, 0, 0), (5, 5, 30, 40))
    picture.paste((0, 0, 200), (30, 20, 66, 40))
    return picture


def png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def test_kitty_and_iterm_get_the_file_as_it_is() -> None:
    content = png(Image.effect_noise((200, 100), 90))
    parts = re.findall(r"\033_G([^;]*);([^\033]*)\033\\", terminal_pictures.encoded(content, "kitty"))
    assert [control.rpartition("m=")[2] for control, _ in parts] == [*["1"] * (len(parts) - 1), "0"]
    assert parts[0][0].startswith("a=T,f=100")
    assert max(len(data) for _, data in parts) <= 4096
    assert base64.b64decode("".join(data for _, data in parts)) == content
    [(size, data)] = re.findall(
        r"\033\]1337;File=inline=1;size=(\d+):([^\a]*)\a", terminal_pictures.encoded(content, "iterm")
    )
    assert (int(size), base64.b64decode(data)) == (len(content), content)


def test_sixel_has_every_dot() -> None:
    text = terminal_pictures.encoded(png(chart()), "sixel")
    head = re.match(r'\033P0;1q"1;1;(\d+);(\d+)', text)
    assert head
    found = Image.new("RGB", (int(head[1]), int(head[2])))
    colours: dict[int, tuple[int, ...]] = {}
    x = y = colour = 0
    for token in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+[?-~]|[?-~]|[$-]", text[head.end() : -2]):
        if token[0] == "#" and ";" in token:
            number, _, *percent = map(int, token[1:].split(";"))
            colours[number] = tuple(round(value * 2.55) for value in percent)
        elif token[0] == "#":
            colour = int(token[1:])
        elif token in "$-":
            x, y = 0, y + 6 * (token == "-")
        else:
            for _ in range(int(token[1:-1] or 1)):
                for bit in range(6):
                    if ord(token[-1]) - 63 >> bit & 1:
                        found.putpixel((x, y + bit), colours[colour])
                x += 1  # noqa: SIM113  # it begins again with each line
    # Percent are coarser than bytes.
    pairs = zip(found.tobytes(), chart().tobytes(), strict=True)
    assert max(abs(one - other) for one, other in pairs) <= 3


def test_what_is_no_picture_raises_and_draws_nothing() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        terminal_pictures.encoded(b"\x89PNG\r\n\x1a\nnothing", "sixel")


def test_the_screen_shows_the_picture_and_says_where_it_is(tmp_path: Path) -> None:
    from mcp_types import CallToolResult, ImageContent

    content = png(chart())
    result = CallToolResult(content=[ImageContent(data=base64.b64encode(content).decode(), mime_type="image/png")])
    out = Terminal()
    Screen(cast("TextIO", out), tmp_path / "demo.png", {"TERM_PROGRAM": "iTerm.app", "TERM": "xterm"}).result(
        result, {}
    )
    assert f"inline=1;size={len(content)}:" in out.getvalue()
    assert str(tmp_path / "demo.png") in out.getvalue()
    assert (tmp_path / "demo.png").read_bytes() == content
