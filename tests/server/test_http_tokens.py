"""Tokens that are wrong, too many of them, and tokens that go away while the server runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp.http import tokens
from kernelmcp.http.rate_limits import MAX_FAILURES
from kernelmcp.http.token_identity import Rejected

from .http_support import INITIALIZE, HttpServer, serving
from .support import wait_until

ALICE, BOB = "alice-0123456789", "bob-0123456789"
WINDOW_SECONDS = 600
CHANGED = "settings have changed"


class Files:
    """The settings' file and the tokens' file of a running server."""

    def __init__(self, folder: Path) -> None:
        self.config, self.tokens = folder / "mcp.toml", folder / "tokens.toml"

    def write(self, auth: str) -> None:
        """As editors do: the server never sees half a file."""
        new = self.config.with_suffix(".new")
        new.write_text(f"[transport_http]\nrate_limit_window_seconds = {WINDOW_SECONDS}\n[auth]\n{auth}\n")
        new.replace(self.config)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server(tmp_path: Path, files: Files, request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    files.tokens.write_text(f'bob = "{BOB}"')
    files.write(request.param.format(tokens=files.tokens))
    with serving(tmp_path, "--config", str(files.config)) as found:
        yield found


@pytest.mark.parametrize("server", [f'tokens.alice = "{ALICE}"'], indirect=True)
def test_wrong_tokens_get_401_until_there_are_too_many_and_then_429(server: HttpServer) -> None:
    wrong = [server.get("/", f"guess-{number}") for number in range(MAX_FAILURES + 3)]
    assert [answer.status_code for answer in wrong] == [401] * MAX_FAILURES + [429] * 3
    for answer in wrong[MAX_FAILURES:]:
        assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_SECONDS
    # Who has a token is not kept out by who guesses, and who gives none has guessed nothing.
    assert server.get("/", ALICE).status_code == 200
    assert server.get("/").status_code == 401


@pytest.mark.parametrize(
    ("proxies", "clients"), [("[]", {"127.0.0.1"}), ('["127.0.0.1"]', {"203.0.113.1", "203.0.113.2"})]
)
def test_who_guesses_cannot_choose_an_address(tmp_path: Path, proxies: str, clients: set[str]) -> None:
    """A proxy adds the address that it sees behind what its client claims to be."""
    with serving(tmp_path, AUTH__TOKENS__ALICE=ALICE, TRANSPORT_HTTP__TRUSTED_PROXIES=proxies) as server:
        check_guesses(server, clients)


def check_guesses(server: HttpServer, clients: set[str]) -> None:

    def guess(address: str, number: int) -> int:
        claimed = f"192.0.2.{number}"
        forwarded = {"X-Forwarded-For": f"{claimed}, {address}", "Forwarded": f"for={claimed}", "X-Real-IP": claimed}
        return server.get("/", f"guess-{number}", **forwarded).status_code

    assert [guess("203.0.113.1", number) for number in range(MAX_FAILURES + 1)] == [401] * MAX_FAILURES + [429]
    assert guess("203.0.113.2", 1) == (401 if len(clients) == 2 else 429)
    assert wait_until(lambda: {line["client"] for line in server.logged("refused a token")} == clients)


def test_a_token_is_gone_though_the_disk_gives_its_file_the_same_time(tmp_path: Path) -> None:
    """As one with a clock of whole seconds does: the same name, inode, size and time, other tokens."""
    file = tmp_path / "tokens.toml"
    file.write_text(f'bob = "{BOB}"')
    os.utime(file, (1_000_000_000, 1_000_000_000))
    found = tokens.TokenFile(file)
    before = found.read()
    file.write_text(f'bob = "{BOB[::-1]}"')
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert wait_until(lambda: found.read() != before)


def test_a_token_of_two_holders_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(f'bob = "{BOB}"\nalice = "{BOB}"')
    with pytest.raises(ConfigurationError, match="bob and alice have the same token"):
        tokens.Authenticator(load(environ={"KERNELMCP_AUTH__TOKENS_FILE": str(tmp_path / "tokens.toml")}))


@pytest.mark.anyio
async def test_a_token_that_a_changed_file_gives_to_a_second_holder_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FILE_CHECK_SECONDS", 0.0)
    file = tmp_path / "tokens.toml"
    file.write_text(f'bob = "{BOB}"')
    environ = {"KERNELMCP_AUTH__TOKENS_FILE": str(file), "KERNELMCP_TRANSPORT_HTTP__AUTH_TOKEN": ALICE}
    authenticator = tokens.Authenticator(load(environ=environ))
    assert (await authenticator.authenticate(ALICE)).principal == "token:default"
    file.write_text(f'alice = "{ALICE}"')
    with pytest.raises(Rejected, match="several holders: alice, default"):
        await authenticator.authenticate(ALICE)


def test_a_tokens_file_that_is_not_there_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        tokens.TokenFile(Path("tokens.toml"))
    assert refused.value.message.startswith(f"{tmp_path / 'tokens.toml'}: cannot be read: ")


@pytest.mark.parametrize(
    "server", [f'tokens.alice = "{ALICE}"', 'tokens_file = "{tokens}"'], ids=["settings", "file"], indirect=True
)
def test_a_server_whose_tokens_are_all_removed_stays_shut(server: HttpServer, files: Files) -> None:
    token = ALICE if "alice" in files.config.read_text() else BOB
    assert server.get("/", token).status_code == 200
    files.write("")
    assert wait_until(lambda: bool(server.logged(CHANGED)))
    for found in (token, None, "x"):
        assert server.get("/", found).status_code == 401
        assert server.post(INITIALIZE, found).status_code == 401
    # A new token opens it again.
    files.write(f'tokens.carol = "carol-{ALICE}"')
    assert wait_until(lambda: len(server.logged(CHANGED)) == 2)
    assert server.get("/", f"carol-{ALICE}").status_code == 200
    assert server.get("/").status_code == 401


@pytest.mark.parametrize("server", ['tokens_file = "{tokens}"'], indirect=True)
def test_a_tokens_file_that_becomes_empty_shuts_everybody_out(server: HttpServer, files: Files) -> None:
    assert server.get("/", BOB).status_code == 200
    new = files.tokens.with_suffix(".new")
    new.write_text("")
    new.replace(files.tokens)
    assert wait_until(lambda: server.get("/", BOB).status_code == 401)
    assert server.get("/").status_code == 401
