"""Each code block of the documentation is valid, and each command in it is run by a test."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from kernelmcp import cli
from kernelmcp.config.load import load
from kernelmcp.config.models import Policy
from kernelmcp.http.tokens import TokenFile

from .blocks import BLOCKS, ELSEWHERE, HERE, INLINE, LANGUAGES, README_INLINE, SHELL, Block, Elsewhere, blocks, commands
from .test_docs_unit import ROOT

PROGRAMS = (
    "kernelmcp ",
    "pip ",
    "pipx ",
    "uv ",
    "uvx ",
    "npx ",
    "python3 ",
    "jupyter ",
    "claude ",
    "docker ",
    "kubectl ",
)
TOKENS = ('alice = "..."', 'bob = "..."')


def test_a_block_names_its_language() -> None:
    assert [block for block in BLOCKS if block.language not in LANGUAGES] == []


def test_every_command_of_a_block_is_run_by_a_test_and_no_other_is_listed() -> None:
    written = {command for block in blocks(SHELL) for command in commands(block)}
    assert written == HERE | set(ELSEWHERE), "new commands belong into tests/docs/blocks.py"
    assert not HERE & set(ELSEWHERE)


def test_every_command_within_the_readmes_sentences_is_run_by_a_test() -> None:
    found = {code for page, code in INLINE if page == "README.md" and code.startswith(PROGRAMS)}
    clients = {code for code in found if re.fullmatch(r"kernelmcp install \S+ --folder ~/kernelmcp", code)}
    assert len(clients) == 9
    assert {re.sub(r"\s+", " ", code) for code in found - clients} == set(README_INLINE)


@pytest.mark.parametrize("command", [*ELSEWHERE, *README_INLINE])
def test_a_command_is_run_where_it_is_said_to_be(command: str) -> None:
    place: Elsewhere = {**ELSEWHERE, **README_INLINE}[command]
    files = [path for path in sorted((ROOT / place.file).rglob("*")) if path.is_file()] or [ROOT / place.file]
    assert any(place.words in path.read_text("utf-8") for path in files)


@pytest.mark.parametrize(
    "command", sorted({re.sub(r"\s+", " ", code) for _, code in INLINE if re.match(r"kernelmcp [a-z]", code)})
)
def test_a_kernelmcp_command_in_a_sentence_is_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(command.replace("[", "").replace("]", "").replace("install CLIENT", "install cursor"))[1:]
    try:
        cli._parser().parse_args(arguments)
    except SystemExit:
        # `kernelmcp skills promote`, named in a sentence, without what it takes.
        assert re.search(r"arguments are required: [A-Z]|expected one argument", capsys.readouterr().err)


@pytest.mark.parametrize("command", sorted({code for _, code in INLINE if code.startswith("scripts/")}))
def test_a_script_in_a_sentence_is_there_with_its_options(command: str) -> None:
    path, *arguments = shlex.split(command)
    texts = [file.read_text("utf-8") for file in (ROOT / "scripts").glob(f"{Path(path).stem}*") if file.is_file()]
    assert texts
    options = [argument for argument in arguments if argument.startswith("--")]
    assert [option for option in options if not any(option in text for text in texts)] == []


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: f"{block.page} {block.text.split()[0]}")
def test_a_configuration_is_one(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    for name in re.findall(r"\$\{(\w+)\}", block.text):
        monkeypatch.setenv(name, "a-secret-of-the-test")
    file = tmp_path / "mcp.toml"
    file.write_text(block.text)
    if tuple(block.text.splitlines()) == TOKENS:
        assert [name for name, _ in TokenFile(file).read()] == ["alice", "bob"]
        return
    sections = tomllib.loads(block.text)
    of_policy = sections.keys() <= Policy.model_fields.keys()
    assert load(None if of_policy else file, file if of_policy else None)
