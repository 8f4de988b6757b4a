"""Where names lead, of upstreams and of their logins: one look-up, a check, and a connection to what was checked."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import subprocess
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kernelmcp.upstreams import bounded_http
from kernelmcp.upstreams.addresses import AddressRefused, AddressRules, is_public
from kernelmcp.upstreams.bounded_http import BoundedTransport
from kernelmcp_kernel.network.allowed_hosts import is_public as is_public_to_guests

from ..starting import start_python
from .browser import communicate, login
from .conftest import HERE, Started

PUBLIC, LOOPBACK, METADATA = "93.184.215.14", "127.0.0.1", "169.254.169.254"
NAME = "mcp.example.com"
REFUSED = "an address that is not public; if that is intended, set private_addresses = true"


def starting_with(names: dict[str, list[str]], connected: Path) -> partial[subprocess.Popen[str]]:
    """Starts kernelmcp with these names; each has one address after the other."""
    connected.touch()
    return partial(start_python, HERE / "changing_names.py", json.dumps(names), str(connected))


def renamed(url: str, name: str = NAME) -> str:
    return url.replace("127.0.0.1", name)


def try_guarded(tmp_path: Path, url: str, addresses: list[str], more: str = "") -> tuple[int, str, list[str]]:
    """Its status, what it says, and the addresses that it connected to."""
    (tmp_path / "mcp.toml").write_text(f'[upstreams.servers.guarded]\nurl = "{url}"\n{more}')
    connected = tmp_path / "connected"
    host = httpx2.URL(url).raw_host.decode()
    with starting_with({host: addresses}, connected)(
        *("upstreams", "try", "guarded", "--config", str(tmp_path / "mcp.toml")),
        env={"KERNELMCP_HOME": str(tmp_path / "home")}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        said = communicate(process)[0]
    return process.returncode, said, connected.read_text().splitlines()


@pytest.mark.parametrize("address", [LOOPBACK, "10.1.2.3", METADATA, "0.0.0.0"])
def test_a_public_name_that_leads_to_a_private_address_is_not_connected_to(
    tmp_path: Path, started: Started, address: str
) -> None:
    status, said, connected = try_guarded(tmp_path, renamed(started("hostile_http_server.py", "good")), [address])
    assert (status, connected) == (1, [])
    assert f"its name leads to {REFUSED}" in said
    assert address not in said


def test_a_connection_goes_to_the_address_that_was_checked_whatever_the_name_says_next(
    tmp_path: Path, started: Started
) -> None:
    url = renamed(started("hostile_http_server.py", "good"))
    assert try_guarded(tmp_path, url, [PUBLIC])[0] == 0
    for changing in ([PUBLIC, LOOPBACK], [PUBLIC, LOOPBACK, PUBLIC, LOOPBACK, PUBLIC], [LOOPBACK, PUBLIC]):
        (tmp_path / "connected").unlink()
        assert LOOPBACK not in try_guarded(tmp_path, url, changing)[2]


@pytest.mark.parametrize(
    ("name", "more"),
    [(NAME, "private_addresses = true\n"), (NAME, "[upstreams]\nprivate_addresses = true\n"), ("crm", ""),
     ("crm.internal", ""), ("bücher.local", ""), ("localhost", ""), ("127.0.0.1", "")],
)  # fmt: skip
def test_what_the_user_means_is_connected_to(tmp_path: Path, started: Started, name: str, more: str) -> None:
    url = renamed(started("hostile_http_server.py", "good"), name)
    status, said, connected = try_guarded(tmp_path, url, [LOOPBACK], more)
    assert (status, set(connected)) == (0, {LOOPBACK}), said


PUBLIC_6, MAPPED, ULA = "2606:2800:21f:cb07::1", "::ffff:127.0.0.1", "fd00::5"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("configured", "host", "is_permitted"),
    [
        (NAME, PUBLIC, True), (NAME, PUBLIC_6, True), (NAME, LOOPBACK, False), (NAME, "::1", False),
        (NAME, MAPPED, False), (NAME, ULA, False), (NAME, METADATA, False), (NAME, "64:ff9b::7f00:1", False),
        (NAME, "localhost", False), (NAME, "2130706433", False), (NAME, "0x7f.1", False), (NAME, "fe80::1%lo", False),
        ("[fd00::5]", ULA, True), ("[fd00::5]", "fd00::6", False), ("10.0.0.5", "10.0.0.6", False),
        (METADATA, METADATA, True), ("LOCALHOST.", "127.0.0.1", True), ("127.0.0.1", "127.0.0.2", True),
        ("127.0.0.1", METADATA, False), ("10.0.0.5", LOOPBACK, False), ("crm", LOOPBACK, False),
    ],
)  # fmt: skip
async def test_addresses_are_permitted_by_what_the_user_has_configured(
    configured: str, host: str, is_permitted: bool
) -> None:
    rules = AddressRules(f"http://{configured}/mcp", allow_private=False)
    if is_permitted:
        assert await rules.permitted(host, 80) == [host]
    else:
        with pytest.raises(AddressRefused, match="not public"):
            await rules.permitted(host, 80)
    assert await AddressRules(f"http://{NAME}/", allow_private=True).permitted(host, 80)


@pytest.mark.anyio
async def test_a_proxy_looks_names_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gets is the name, for which this machine has no address at all."""
    async with await anyio.create_tcp_listener(local_host=LOOPBACK) as listener, anyio.create_task_group() as tasks:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        got: list[bytes] = []

        async def answer(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                got.append(await stream.receive())
                await stream.send(b"HTTP/1.1 204 No Content\r\n\r\n")

        tasks.start_soon(listener.serve, answer)
        monkeypatch.setenv("http_proxy", f"http://localhost:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        url = "http://only-the-proxy-knows.example/mcp"
        transport = BoundedTransport(AddressRules(url, allow_private=False))
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get(url)).status_code == 204
        assert got[0].startswith(b"GET http://only-the-proxy-knows.example/mcp HTTP/1.1\r\n")
        tasks.cancel_scope.cancel()


def _self_signed(folder: Path) -> Path:
    """A file with a certificate for localhost, and its key."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
    certificate = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False).sign(
        key, hashes.SHA256()
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file = folder / "localhost.pem"
    file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    return file


@pytest.mark.anyio
async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _self_signed(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    listening = await asyncio.start_server(answer, "localhost", 0, ssl=server)
    url = f"https://localhost:{listening.sockets[0].getsockname()[1]}/mcp"
    statuses: list[int] = []
    for trusted in (None, file):
        bounded_http._trusted.cache_clear()
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        transport = BoundedTransport(AddressRules(url, allow_private=True))
        async with httpx2.AsyncClient(transport=transport) as client:
            with nullcontext() if trusted else pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                statuses.append((await client.get(url)).status_code)
    bounded_http._trusted.cache_clear()
    listening.close()
    assert statuses == [204]


@pytest.mark.parametrize(
    "address",
    [PUBLIC, PUBLIC_6, LOOPBACK, METADATA, MAPPED, ULA, "::1", "0.0.0.0", "100.100.100.200", "168.63.129.16",
     "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "fd00:ec2::254", "fe80::1", "2002:7f00:1::", "2001::1",
     "64:ff9b::808:808", "64:ff9b::a00:1", "::127.0.0.1", "3fff::1", "ff02::1"],
)  # fmt: skip
def test_upstreams_and_guests_have_one_notion_of_a_public_address(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert is_public(parsed) == is_public_to_guests(parsed) == (address in (PUBLIC, PUBLIC_6, "64:ff9b::808:808"))


# -- logins ------------------------------------------------------------------------------------------------------------


def login_at(
    tmp_path: Path, started: Started, metadata: dict[str, str], names: dict[str, list[str]], more: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    wrong = json.dumps({"host": NAME, "metadata": metadata})
    url = renamed(started("oauth_server.py", "3600", "0", wrong))
    (tmp_path / "mcp.toml").write_text(f'[upstreams.servers.guarded]\nurl = "{url}"\n{more}')
    connected = tmp_path / "connected"
    start = starting_with({NAME: [PUBLIC], **names}, connected)
    return login(tmp_path, start=start), connected.read_text().splitlines()


def test_a_login_at_public_names_works(tmp_path: Path, started: Started) -> None:
    done, connected = login_at(tmp_path, started, {}, {})
    assert (done.returncode, set(connected)) == (0, {PUBLIC}), done


@pytest.mark.parametrize("endpoint", ["authorization", "token", "registration"])
@pytest.mark.parametrize(("host", "addresses"), [("127.0.0.1", []), ("login.example.net", [LOOPBACK])])
def test_a_login_goes_to_no_private_address_that_its_server_names(
    tmp_path: Path, started: Started, endpoint: str, host: str, addresses: list[str]
) -> None:
    here = f"http://{host}:1/{endpoint}"
    done, connected = login_at(tmp_path, started, {f"{endpoint}_endpoint": here}, {host: addresses or [host]})
    assert (done.returncode, set(connected)) == (1, {PUBLIC}), done
    assert f"the login failed: the login server {host}: " in done.stderr
    assert REFUSED in done.stderr


def test_a_login_at_a_private_address_is_the_users_to_permit(tmp_path: Path, started: Started) -> None:
    here = {"token_endpoint": "HERE/token"}
    done, connected = login_at(tmp_path, started, here, {}, "private_addresses = true\n")
    assert (done.returncode, set(connected)) == (0, {PUBLIC, LOOPBACK}), done
