"""A server that wants OAuth: the login is a command, tokens are renewed in calls, and nothing else waits for one."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import anyio
import pytest
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import OAuthToken

from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.logins.login_file import check_usable
from kernelmcp.upstreams.upstreams import Upstreams

from ..starting import start_python
from .browser import login
from .conftest import DEADLINE, Opened, Started, on_stdio, until

pytestmark = pytest.mark.anyio
LONG = "3600"
# A hundred renewals take a minute; more than a few show what is wrong.
CALLS, USES = 60, "3"


def settings(url: str) -> str:
    return f'[upstreams.servers.guarded]\nurl = "{url}"\n'


async def call(upstreams: Upstreams, tool: str, **arguments: object) -> object:
    result = await upstreams.tool_call("guarded", tool, arguments, timeout_seconds=60)
    assert result.value is not None
    return result.value["structuredContent"]["result"]


async def test_without_a_login_calls_say_what_to_run_and_nothing_waits(opened: Opened, started: Started) -> None:
    async with opened(settings(started("oauth_server.py", LONG)) + on_stdio("crm", "crm_server.py")) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "login_needed")
        with pytest.raises(UpstreamError, match="run `kernelmcp upstreams login guarded`") as caught:
            await call(upstreams, "echo", value=1)
        assert caught.value.kind == "ServerUnavailable"
        assert await upstreams.tool_call("crm", "echo", {"value": 1}, timeout_seconds=60)


async def test_a_login_serves_a_server_that_runs_and_the_next_one(
    opened: Opened, started: Started, tmp_path: Path
) -> None:
    toml = settings(started("oauth_server.py", LONG))
    async with opened(toml) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "login_needed")
        done = await anyio.to_thread.run_sync(login, tmp_path)
        assert (done.returncode, "Logged in to guarded: 5 tools." in done.stdout) == (0, True), done
        assert await call(upstreams, "echo", value=1) == 1
        # A token that the server takes back is renewed in the middle of calls, whose others go on.
        assert await call(upstreams, "forget") == "forgotten"
        values: list[object] = []

        async def one(value: int) -> None:
            values.append(await call(upstreams, "echo", value=value))

        async with anyio.create_task_group() as tasks:
            for value in range(10):
                tasks.start_soon(one, value)
        assert sorted(map(str, values)) == sorted(map(str, range(10)))
        assert await call(upstreams, "renewals") == 1
    file = tmp_path / "home" / "upstreams" / "logins" / "guarded.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with opened(toml) as upstreams:
        assert await call(upstreams, "echo", value=2) == 2
        assert await call(upstreams, "forget_all") == "forgotten"
        with pytest.raises(UpstreamError) as caught:
            await call(upstreams, "echo", value=3)
        assert caught.value.kind == "ServerUnavailable"
        await until(lambda: upstreams.status("guarded").state == "login_needed")


async def test_a_token_that_has_expired_is_renewed_after_a_restart_too(
    opened: Opened, started: Started, tmp_path: Path
) -> None:
    toml = settings(started("oauth_server.py", LONG))
    (tmp_path / "mcp.toml").write_text(toml)
    assert (await anyio.to_thread.run_sync(login, tmp_path)).returncode == 0
    file = tmp_path / "home" / "upstreams" / "logins" / "guarded.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "expires_at": 1}))
    async with opened(toml) as upstreams:
        assert await call(upstreams, "echo", value=1) == 1
        assert json.loads(file.read_text())["tokens"] != said["tokens"]


async def test_tokens_are_for_the_address_that_they_were_made_for(
    opened: Opened, started: Started, tmp_path: Path
) -> None:
    (tmp_path / "mcp.toml").write_text(settings(started("oauth_server.py", LONG)))
    assert (await anyio.to_thread.run_sync(login, tmp_path)).returncode == 0
    async with opened(settings(started("oauth_server.py", LONG))) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "login_needed")


async def test_a_header_of_the_settings_is_no_matter_of_a_login(opened: Opened, started: Started) -> None:
    toml = settings(started("oauth_server.py", LONG)) + 'headers = { authorization = "Bearer wrong-secret" }\n'
    async with opened(toml) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "unavailable")
        assert upstreams.status("guarded").error == "it answered with HTTP 401"


async def test_two_servers_renew_one_login_after_each_other(opened: Opened, started: Started, tmp_path: Path) -> None:
    """The authorization server takes the second use of a refresh token for a theft."""
    toml = settings(started("oauth_server.py", LONG, USES))
    (tmp_path / "mcp.toml").write_text(toml)
    assert (await anyio.to_thread.run_sync(login, tmp_path)).returncode == 0
    other = start_python(
        *(Path(__file__).with_name("calling.py"), str(tmp_path / "home"), str(tmp_path / "mcp.toml"), str(CALLS)),
        stdout=subprocess.PIPE,
        text=True,
    )
    async with opened(toml) as upstreams:
        for number in range(CALLS):
            assert await call(upstreams, "echo", value=number) == number
        said, _ = await anyio.to_thread.run_sync(other.communicate)
        assert said.strip() == "0"
        renewals = await call(upstreams, "renewals")
        assert isinstance(renewals, int)
        assert renewals > CALLS // 3


async def test_a_renewal_that_fails_is_tried_again(opened: Opened, started: Started, tmp_path: Path) -> None:
    toml = settings(started("oauth_server.py", LONG))
    (tmp_path / "mcp.toml").write_text(toml)
    assert (await anyio.to_thread.run_sync(login, tmp_path)).returncode == 0
    async with opened(toml) as upstreams:
        assert await call(upstreams, "be_ill", times=1) == "ill"
        with pytest.raises(
            UpstreamError, match="could not be renewed: the authorization server answered with HTTP 503"
        ):
            await call(upstreams, "be_ill", times=0)
        with anyio.fail_after(DEADLINE):
            while not await answers(upstreams):
                pass
        assert upstreams.status("guarded").state == "ready"


async def answers(upstreams: Upstreams) -> bool:
    try:
        return await call(upstreams, "echo", value=1) == 1
    except UpstreamError:
        return False


async def test_a_server_that_runs_asks_no_address_that_an_answer_names(
    opened: Opened, started: Started, tmp_path: Path
) -> None:
    """`WWW-Authenticate: Bearer resource_metadata=...` of a server, while there is a login and while there is none."""
    url = started("refusing_server.py")
    toml = settings(url)
    async with opened(toml) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "login_needed")
    logins = tmp_path / "home" / "upstreams" / "logins"
    logins.mkdir(parents=True, exist_ok=True)
    said = {"url": url, "tokens": {"access_token": "a", "token_type": "Bearer"}, "client": {"client_id": "c"}}
    (logins / "guarded.json").write_text(json.dumps(said))
    async with opened(toml) as upstreams:
        await until(lambda: upstreams.status("guarded").state == "login_needed")
    asked = await anyio.to_thread.run_sync(fetched, url.replace("/mcp", "/asked"))
    assert set(json.loads(asked)) == {"POST /mcp"}


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DEADLINE) as page:
        return page.read()


@pytest.mark.parametrize(
    "wrong", [{"expires_in": 0}, {"expires_in": -5}, {"access_token": "a\r\nX: y"}, {"refresh_token": "b\n"}]
)
def test_tokens_that_no_request_can_use_are_refused(wrong: dict[str, object]) -> None:
    check_usable(OAuthToken(access_token="a", refresh_token="b", expires_in=60))
    with pytest.raises(OAuthFlowError):
        check_usable(OAuthToken.model_validate({"access_token": "a", "token_type": "Bearer", **wrong}))


HERE, ELSEWHERE = "HERE", "https://elsewhere.example"
ANNOUNCED = {"authorization_response_iss_parameter_supported": True}


@pytest.mark.parametrize(
    ("metadata", "iss", "why"),
    [
        (ANNOUNCED, HERE, ""),
        ({}, HERE, ""),
        (ANNOUNCED, None, "missing iss"),
        (ANNOUNCED, ELSEWHERE, "iss mismatch"),
        ({}, ELSEWHERE, "iss mismatch"),
        ({}, f"{HERE}/", "iss mismatch"),
    ],
)
def test_a_login_is_answered_by_the_server_that_was_asked(
    started: Started, tmp_path: Path, metadata: dict[str, object], iss: str | None, why: str
) -> None:
    """RFC 9207: else one authorization server could be given what another one's login has brought."""
    wrong = json.dumps({"metadata": metadata, "iss": iss})
    (tmp_path / "mcp.toml").write_text(settings(started("oauth_server.py", LONG, "0", wrong)))
    done = login(tmp_path)
    assert (done.returncode, why in done.stderr) == (1 if why else 0, True), done
    assert (tmp_path / "home" / "upstreams" / "logins" / "guarded.json").exists() == (not why)


def test_a_login_looks_on_where_a_question_for_metadata_is_redirected(started: Started, tmp_path: Path) -> None:
    wrong = json.dumps({"redirects": "/.well-known/oauth-protected-resource/mcp"})
    (tmp_path / "mcp.toml").write_text(settings(started("oauth_server.py", LONG, "0", wrong)))
    assert login(tmp_path).returncode == 0
