"""`kernelmcp demo`, and what it and doctor say when something is not as it should be."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import nbformat
import pytest
from PIL import Image

from kernelmcp.commands import demo, terminal_pictures
from kernelmcp.commands.demo_cells import steps
from kernelmcp.commands.demo_screen import Screen

from ..processes import command_line
from ..starting import run_kernelmcp
from .support import DEADLINE


def run(command: str, env: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp(command, *arguments, env=env, cwd=folder)


def is_a_sentence(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode != 0 and "Traceback" not in done.stderr and done.stderr.startswith("kernelmcp: ")


def test_the_demo_shows_what_it_is_for_and_goes_on_without_an_index(
    server_env: dict[str, str], tmp_path: Path, kernelspec: str
) -> None:
    env = server_env | {"KERNELMCP_PACKAGES__INDEX_URL": "http://127.0.0.1:9/simple"}
    done = run("demo", env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    own = kernelspec == "kernelmcp"
    assert f"{8 if own else 7} of 10 steps did what they should, {2 if own else 3} skipped" in done.stdout
    assert "kernelmcp install claude-desktop --folder" in done.stdout.partition("skipped. Wrote demo.ipynb")[2]
    assert "(12, 5027)" in done.stdout.partition("10. ")[2], "the variables outlive an endless loop"
    assert "[info" not in done.stderr
    notebook = nbformat.read(tmp_path / "demo.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert "image/png" in json.dumps(notebook.cells[1].outputs)
    assert f"{(tmp_path / 'demo.png').stat().st_size:,} bytes: demo.png" in done.stdout
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size == (480, 250)
    if own:
        assert "skipped: PACKAGE_INSTALL_FAILED: tabulate: the package index does not answer" in done.stdout
        tried = done.stdout.partition("7. ")[2].partition("8. ")[0]
        assert len(re.findall("^    refused  ", tried, re.MULTILINE)) == 4
        assert "GOT OUT" not in tried.partition("attempt(")[2]


def test_a_break_out_that_works_fails_the_demo(tmp_path: Path) -> None:
    """The cell itself, in a Python without a sandbox: its attempts are real ones."""
    with demo._targets() as targets:
        [cell] = [step for step in steps(targets.file, targets.port) if "SECRET_FILE" in str(step.arguments)]
        # The third would replace this very process, and then nothing would be printed of the fourth.
        code = cell.arguments["code"].replace('attempt("start a program"', '("start a program"')
        assert not targets.reached("refused  read a file of yours")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
        assert re.search(f"GOT OUT  read a file of yours +'{targets.secret}'", done.stdout)
        assert targets.reached("refused"), "somebody has connected"
        assert not targets.reached("refused"), "and that was all"
        assert targets.reached(targets.secret)
        assert targets.reached(done.stdout.replace(targets.secret, ""))


@pytest.mark.parametrize("command", ["demo", "doctor"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"KERNELMCP_HOME": "/proc/nope"},
        {"KERNELMCP_HOME": "/dev/null/x"},
        {"KERNELMCP_POLICY_REQUIRED_LAYERS": "landlock"},
        {"KERNELMCP_VOLUMES__DEFAULT_VOLUME": "/nowhere"},
    ],
    ids=["unwritable", "below a file", "misspelt", "no folder"],
)
def test_what_is_wrong_is_a_sentence_with_a_remedy(
    server_env: dict[str, str], tmp_path: Path, command: str, wrong: dict[str, str]
) -> None:
    done = run(command, server_env | wrong, tmp_path)
    said = done.stdout + done.stderr
    assert (done.returncode != 0, "Traceback" in said) == (True, False), said
    assert next(iter(wrong)).removeprefix("KERNELMCP_").removeprefix("VOLUMES__").lower() in said.lower()
    assert "pip install" not in said
    if command == "demo":
        assert done.stderr.startswith("kernelmcp: ")
        assert len(done.stderr.splitlines()) <= 4


def test_the_server_itself_says_it_in_a_sentence_too(server_env: dict[str, str], tmp_path: Path) -> None:
    assert is_a_sentence(run("serve", server_env | {"KERNELMCP_HOME": "/proc/nope"}, tmp_path))


@pytest.mark.parametrize("output", ["missing/demo.ipynb", "/proc/demo.ipynb", "."])
def test_a_notebook_that_cannot_be_written_is_said_before_anything_starts(
    server_env: dict[str, str], tmp_path: Path, output: str
) -> None:
    done = run("demo", server_env, tmp_path, "--output", output)
    assert (done.returncode, done.stdout, is_a_sentence(done)) == (2, "", True)
    assert "--output" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["demo", "doctor"])
def test_control_c_is_no_traceback(server_env: dict[str, str], tmp_path: Path, command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "kernelmcp", command],
        env=server_env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # As at a terminal. What an earlier test of this worker, or who started it, ignores would be ignored here too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout
    try:
        if command == "demo":
            assert any("1. " in line for line in process.stdout)
        else:
            assert wait_for_child(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait(DEADLINE)
    assert (process.returncode, "Traceback" in said, "kernelmcp: interrupted" in said) == (130, False, True), said


def wait_for_child(pid: int) -> bool:
    """Until it has started its kernel, so that it is at work."""
    import psutil

    from .support import wait_until

    return wait_until(
        lambda: any("kernelmcp_kernel" in " ".join(command_line(one)) for one in psutil.Process(pid).children())
    )


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
