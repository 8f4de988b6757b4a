"""The guest's network, attacked where it is decided: the host call `fetch`, with whatever a hostile guest may send."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.network import Network
from kernelmcp_kernel.network.allowed_hosts import AllowList, is_public, parse_address
from kernelmcp_kernel.network.credentials import Credentials
from kernelmcp_kernel.network.request import parse_url
from kernelmcp_kernel.settings import NetworkSettings

from .driver import DEADLINE
from .site import Site, running_site

SECRET = "tk-5fe1c0ffee+/42"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running


def fetch(settings: NetworkSettings, *calls: dict[str, Any]) -> list[dict[str, Any] | str]:
    """Make these host calls of one kernel at once; each gives an answer, or the text of its refusal."""

    async def one(network: Network, arguments: dict[str, Any]) -> dict[str, Any] | str:
        try:
            return await network.fetch({"call": "fetch", "headers": [], **arguments}, Request(Cell({})))
        except HostCallError as error:
            return str(error)

    async def every() -> list[dict[str, Any] | str]:
        async with asyncio.timeout(DEADLINE):
            network = Network(settings)
            return await asyncio.gather(*(one(network, arguments) for arguments in calls))

    return asyncio.run(every())


def answer(settings: NetworkSettings, url: str, **arguments: Any) -> dict[str, Any]:
    (found,) = fetch(settings, {"url": url, **arguments})
    assert isinstance(found, dict), found
    return found


def refusal(settings: NetworkSettings, url: object, **arguments: Any) -> str:
    (found,) = fetch(settings, {"url": url, **arguments})
    assert isinstance(found, str), found
    return found


def body(found: dict[str, Any]) -> bytes:
    return base64.b64decode(found["body"])


def allowing(site: Site, *more: str, **settings: Any) -> NetworkSettings:
    return NetworkSettings(allow_hosts=[f"127.0.0.1:{site.port}", *more], **settings)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the name server says: one answer for each look-up of a name, the last one for ever."""
    answers: dict[str, list[str]] = {}

    def getaddrinfo(name: str, port: int, **_: Any) -> list[Any]:
        found = answers[name]
        address = found.pop(0) if len(found) > 1 else found[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (part, port)) for part in address.split()]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


# -- what works


def test_a_request_arrives_as_it_was_made_and_its_answer_comes_back(site: Site) -> None:
    found = answer(
        allowing(site), site.url("/a%20b?c=d"), method="POST",
        headers=[["X-One", "1"], ["x-one", "2"]], body=base64.b64encode(b"\0\xff").decode(),
    )  # fmt: skip
    seen = json.loads(body(found))
    assert (found["status"], found["reason"], found["redirected"]) == (200, "OK", False)
    assert (seen["method"], seen["path"], seen["body"]) == ("POST", "/a%20b?c=d", "\0\xff")
    assert [value for name, value in seen["headers"] if name.lower() == "x-one"] == ["1", "2"]
    assert ["content-type", "application/json"] in found["headers"]


def test_gzip_is_undone(site: Site) -> None:
    found = answer(allowing(site), site.url("/gzip"))
    assert body(found) == b"unpacked"
    assert not {"content-encoding", "content-length"} & {name for name, _ in found["headers"]}


def test_redirects_are_followed_and_the_method_changes_as_in_browsers(site: Site) -> None:
    see_other = answer(allowing(site), site.url("/redirect?status=303&to=/end"), method="PUT", body="eA==")
    temporary = answer(allowing(site), site.url("/redirect?status=307&to=/end"), method="PUT", body="eA==")
    assert [json.loads(body(found))["method"] for found in (see_other, temporary)] == ["GET", "PUT"]
    assert (temporary["url"], temporary["redirected"]) == (site.url("/end"), True)
    manual = answer(allowing(site), site.url("/redirect?to=/end"), follow=False)
    assert (manual["status"], dict(manual["headers"])["location"]) == (302, "/end")


def test_ipv6_works_in_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running_site(address="::1") as site:
        settings = NetworkSettings(allow_hosts=[f"[::1]:{site.port}"])
        assert answer(settings, site.url("/end", "[0:0::1]"))["url"] == site.url("/end", "[::1]")
        assert site.arrived[-1].header("host") == [f"[::1]:{site.port}"]


# -- where to


def test_without_hosts_there_is_no_network() -> None:
    assert "[network] allow_hosts in mcp.toml" in refusal(NetworkSettings(), "https://example.org/")


@pytest.mark.parametrize(
    ("entry", "host", "port", "permitted"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 8443, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.test", 443, False),
        ("*.example.org", "a.b.example.org", 80, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("Example.ORG:8443", "example.org", 8443, True),
        ("Example.ORG:8443", "example.org", 443, False),
    ],
)
def test_the_list_names_hosts_and_ports(entry: str, host: str, port: int, permitted: bool) -> None:
    assert AllowList([entry]).permits(host, port) == permitted


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16",
        "169.254.169.254", "172.16.0.1", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "fc00::1",
        "fd00:ec2::254", "fe80::1%eth0", "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_public_internet_is_known(address: str) -> None:
    assert not is_public(parse_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(parse_address(address))


def test_a_name_that_leads_to_this_machine_is_refused_unless_the_address_is_listed(
    site: Site, names: dict[str, list[str]]
) -> None:
    names["inside.test"] = ["127.0.0.1"]
    entry = f"inside.test:{site.port}"
    text = refusal(NetworkSettings(allow_hosts=[entry]), site.url("/", "inside.test"))
    assert f"add 127.0.0.1:{site.port} to [network] allow_hosts" in text
    assert answer(allowing(site, entry), site.url("/", "inside.test"))["status"] == 200


def test_localhost_is_allowed_by_its_name_and_only_leads_to_loopback(site: Site, names: dict[str, list[str]]) -> None:
    settings = NetworkSettings(allow_hosts=[f"localhost:{site.port}"])
    names["localhost"] = ["127.0.0.1"]
    assert answer(settings, site.url("/", "LOCALHOST."))["status"] == 200
    names["localhost"] = ["10.0.0.1"]
    assert "is at 10.0.0.1" in refusal(settings, site.url("/", "localhost"))


def test_an_address_that_was_checked_is_not_looked_up_again(site: Site, names: dict[str, list[str]]) -> None:
    """Rebinding: a second look, between check and connection, would give another address."""
    names["rebound.test"] = ["10.0.0.1 127.0.0.1", "10.0.0.1"]
    settings = allowing(site, f"rebound.test:{site.port}")
    assert answer(settings, site.url("/", "rebound.test"))["status"] == 200
    assert "is at 10.0.0.1" in refusal(settings, site.url("/", "rebound.test"))


@pytest.mark.parametrize(
    "url",
    [
        "http://{allowed}@evil.test/", "http://evil.test/@{allowed}/", "http://{allowed}:80@evil.test/",
        "http://evil.test#@{allowed}/", "http://evil.test?@{allowed}/", "http://{allowed}.evil.test/",
        "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://017700000001:{port}/", "http://127.1:{port}/",
        "http://0177.0.0.1:{port}/", "http://127.0.0.1.:{port}x/", "http://[::1]:{port}/", "http://[::]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/", "http://[::ffff:7f00:1]:{port}/", "http://[::1%25lo]:{port}/",
        "http://0.0.0.0:{port}/", "http://127.0.0.2:{port}/", "http://①②⑦.0.0.1:{port}/",
        "http://127.0.0.1\t:{port}/", "http://127.0.0.1:{port}\\@evil.test/", "http:\\\\127.0.0.1:{port}/",
        "http:///127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://127.0.0.1:{port}/ HTTP/1.1\r\nX-Evil: 1",
        "http://127.0.0.1:{port}/\r\nHost: evil.test", "http://127.0.0.1:99999/", "http://127.0.0.1:0/",
        "ftp://127.0.0.1:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/_x", "data:text/plain,x",
        "javascript:1", "unix:///tmp/socket", "", None, 7, ["http://127.0.0.1/"], "http://" + "a" * 20_000,
    ],
)  # fmt: skip
def test_no_way_of_writing_a_url_reaches_another_host_or_gets_past_the_list(site: Site, url: object) -> None:
    if isinstance(url, str):
        url = url.format(allowed=f"127.0.0.1:{site.port}", port=site.port)
    before = len(site.arrived)
    refusal(allowing(site), url)
    assert len(site.arrived) == before


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/", "http://localhost:{port}/", "http://[::1]:{port}/", "//evil.test/",
        "file:///etc/passwd", "http://2130706433:{port}/", "http://user@127.0.0.1:{port}/", "javascript:alert(1)",
        "http://[evil/",
    ],
)  # fmt: skip
def test_a_redirect_is_checked_like_a_request(site: Site, location: str) -> None:
    before = len(site.arrived)
    refusal(allowing(site), site.url("/redirect?to=" + location.format(port=site.port)))
    assert len(site.arrived) == before + 1


def test_redirects_in_a_circle_end(site: Site) -> None:
    text = refusal(allowing(site), site.url("/redirect?to=" + "/redirect%3Fto%3D" * 30 + "/redirect"))
    assert "redirects" in text


def make_certificate(folder: Path, name: str) -> Path:
    """A certificate that signs itself, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    key_format = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / f"{name}.pem"
    file.write_bytes(key.private_bytes(encoding, *key_format) + made.public_bytes(encoding))
    return file


def test_certificates_are_checked_against_the_name_and_not_the_address(
    tmp_path: Path, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["good.test"] = names["other.test"] = ["127.0.0.1"]
    file = make_certificate(tmp_path, "good.test")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    with running_site(tls) as site:
        good, other = (f"https://{name}.test:{site.port}/echo" for name in ("good", "other"))
        settings = allowing(site, f"good.test:{site.port}", f"other.test:{site.port}")
        assert "certificate verify failed" in refusal(settings, good)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert answer(settings, good)["status"] == 200
        assert "certificate verify failed" in refusal(settings, other)
        assert [seen.header("host") for seen in site.arrived] == [[f"good.test:{site.port}"]]


# -- what is sent


@pytest.mark.parametrize(
    "arguments",
    [
        {"headers": [["X", "a\r\nHost: evil.test"]]}, {"headers": [["X\r\nY", "a"]]}, {"headers": [["X ", "a"]]},
        {"headers": [["X", "a\0"]]}, {"headers": [["X", "☃"]]}, {"headers": [["X:Y", "a"]]}, {"headers": [["", "a"]]},
        {"headers": [["X", 1]]}, {"headers": [["X"]]}, {"headers": {"X": "a"}}, {"headers": None},
        {"headers": [["X", "a" * 40_000]]}, {"headers": [["X", "a"]] * 101},
        {"method": "GET / HTTP/1.1\r\nX: 1\r\n\r\nGET"}, {"method": "CONNECT"}, {"method": "TRACE"}, {"method": ""},
        {"body": "!"}, {"body": 1}, {"body": ["eA=="]},
    ],
)  # fmt: skip
def test_a_request_that_could_be_read_as_another_is_not_sent(site: Site, arguments: dict[str, Any]) -> None:
    before = len(site.arrived)
    refusal(allowing(site), site.url("/"), **arguments)
    assert len(site.arrived) == before


def test_headers_of_the_connection_are_not_the_guests(site: Site) -> None:
    theirs = {
        "Host": "evil.test", "Connection": "X-Kept", "Transfer-Encoding": "chunked", "Content-Length": "500",
        "TE": "gzip", "Upgrade": "h2c", "HTTP2-Settings": "AAA", "Keep-Alive": "1", "Proxy-Authorization": "x",
        "Expect": "100-continue", "Accept-Encoding": "br", "X-Kept": "yes",
    }  # fmt: skip
    answer(allowing(site), site.url("/"), method="POST", body="eA==", headers=[list(pair) for pair in theirs.items()])
    seen = {name.lower(): value for name, value in site.arrived[-1].headers}
    assert (seen.pop("host"), seen.pop("content-length")) == (f"127.0.0.1:{site.port}", "1")
    assert seen == {"x-kept": "yes", "accept-encoding": "gzip", "user-agent": "kernelmcp"}


def test_a_body_over_the_limit_is_not_sent(site: Site) -> None:
    text = refusal(allowing(site, max_request_mb=1), site.url("/"), method="PUT", body="A" * 1_500_000)
    assert "max_request_mb" in text


# -- what comes back


@pytest.mark.parametrize("page", ["/bomb", "/endless"])
def test_an_answer_over_the_limit_is_cut_off_before_it_takes_memory(site: Site, page: str) -> None:
    tracemalloc.start()
    try:
        assert "max_response_mb" in refusal(allowing(site, max_response_mb=1), site.url(page))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("page", ["/headers", "/smuggle", "/nonsense", "/half"])
def test_an_answer_that_breaks_the_protocol_is_an_error(site: Site, page: str) -> None:
    assert "evil" not in refusal(allowing(site), site.url(page))


@pytest.mark.parametrize("page", ["/silent", "/informational"])
def test_an_answer_that_never_comes_is_waited_for_so_long_and_no_longer(site: Site, page: str) -> None:
    site.ended.clear()
    assert "took longer than 0.5 s" in refusal(allowing(site, timeout_seconds=0.5), site.url(page))
    assert site.ended.wait(DEADLINE), "the connection is still there"


def test_many_requests_wait_for_each_other_and_all_are_answered(site: Site) -> None:
    found = fetch(allowing(site), *[{"url": site.url(f"/{number}")} for number in range(30)])
    assert [json.loads(body(one))["path"] for one in found if isinstance(one, dict)] == [f"/{n}" for n in range(30)]


# -- secrets


def with_secret(site: Site, *more: str) -> NetworkSettings:
    return allowing(site, *more, headers={f"127.0.0.1:{site.port}": {"X-Secret": "${NETWORK_TEST_TOKEN}"}})


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETWORK_TEST_TOKEN", SECRET)


@pytest.mark.usefixtures("token")
def test_a_configured_header_is_sent_and_replaces_the_guests(site: Site) -> None:
    answer(with_secret(site), site.url("/"), headers=[["x-secret", "the guest's"]])
    assert site.arrived[-1].header("x-secret") == [SECRET]


@pytest.mark.parametrize("secret", [SECRET, f"{SECRET}\xe9"])
def test_a_secret_that_the_server_sends_back_is_blotted_out(
    site: Site, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETWORK_TEST_TOKEN", secret)
    found = answer(with_secret(site), site.url("/reflect"))
    shown = json.dumps(found) + body(found).decode()
    assert site.arrived[-1].header("x-secret") == [secret]
    assert shown.count("[redacted]") == (6 if secret.isascii() else 5)
    assert SECRET not in shown
    assert base64.b64encode(secret.encode()).decode() not in shown


@pytest.mark.usefixtures("token")
def test_a_secret_is_not_taken_along_to_another_host(site: Site, names: dict[str, list[str]]) -> None:
    names["localhost"] = ["127.0.0.1"]
    to = site.url("/end", "localhost")
    theirs = [["Authorization", "the guest's own"], ["Cookie", "a=b"], ["X-Kept", "yes"]]
    answer(with_secret(site, f"localhost:{site.port}"), site.url(f"/redirect?to={to}"), headers=theirs)
    first, second = site.arrived[-2:]
    assert first.header("x-secret") == [SECRET]
    assert first.header("authorization") == ["the guest's own"]
    assert [second.header(name) for name in ("x-secret", "authorization", "cookie")] == [[], [], []]
    assert second.header("x-kept") == ["yes"]


def test_a_host_without_a_port_gets_its_headers_over_https_only() -> None:
    credentials = Credentials({"api.test": {"Authorization": "Bearer x"}}, {})
    sent = [("Authorization", "Bearer x")]
    assert credentials.headers(parse_url("https://api.test/")) == sent
    assert credentials.headers(parse_url("http://api.test/")) == []
    assert credentials.headers(parse_url("https://www.api.test/")) == []


def test_a_value_that_cannot_be_a_header_is_not_shown_in_the_error() -> None:
    with pytest.raises(ValueError, match="the value of X-Secret") as caught:
        Credentials({"api.test": {"X-Secret": "${TOKEN}"}}, {"TOKEN": f"{SECRET}\r\nX: y"})
    assert SECRET not in str(caught.value)


def test_a_secret_that_is_a_part_of_another_leaves_nothing_of_it() -> None:
    credentials = Credentials({"api.test": {"A": "Bearer ${TOKEN}", "B": "${TOKEN}-and-more"}}, {"TOKEN": SECRET})
    told = credentials.redact_text(f"{SECRET} Bearer {SECRET} {SECRET}-and-more")
    assert told == "[redacted] [redacted] [redacted]"


def test_a_variable_that_is_a_part_of_a_header_is_blotted_out_alone() -> None:
    credentials = Credentials(
        {"api.test": {"Cookie": "session=${TOKEN}; theme=${SHORT}"}}, {"TOKEN": SECRET, "SHORT": "dark"}
    )
    assert credentials.redact_text(f"you are {SECRET}, and it is dark") == "you are [redacted], and it is dark"
