"""HTTP as guest code writes it: every usual way goes through the kernel process, fails in words, can be interrupted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until
from .site import Site, running_site

SECRET = "tk-c0ffee5fe1+/42"
PURE = ["--only-binary=:all:", "--platform=any", "--python-version=3.14", "--implementation=py", "--no-deps"]
REQUESTS = ["requests", "urllib3>=2.2", "idna", "certifi", "charset-normalizer"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running


@pytest.fixture(scope="module")
def kernel(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that may reach the site, knows its secret, and has `requests` in its workspace."""
    sandbox = tmp_path_factory.mktemp("sandbox")
    download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(sandbox / "workspace"), *PURE, *REQUESTS]
    subprocess.run(download, check=True, timeout=5 * DEADLINE)
    here = f"127.0.0.1:{site.port}"
    network = {"allow_hosts": [here], "headers": {here: {"X-Secret": "${TEST_TOKEN}"}}, "timeout_seconds": DEADLINE}
    with running_kernel(
        KERNELMCP_SANDBOX_DIRECTORY=str(sandbox), KERNELMCP_NETWORK=json.dumps(network), TEST_TOKEN=SECRET
    ) as running:
        ran = running.prepare(
            f"import asyncio, glob, json, sys\nsys.path[:0] = glob.glob('*.whl')\nsite = {site.url('')!r}\n"
            "import js, requests, pyodide.http\nfrom urllib.request import Request, urlopen"
        )
        assert ran.status == "ok", ran.error
        yield running


WAYS = {
    "requests": "requests.post(site + {path!r}, b'sent').text",
    "urllib": "urlopen(Request(site + {path!r}, b'sent', method='POST')).read().decode()",
    "pyfetch": "await (await pyodide.http.pyfetch(site + {path!r}, method='POST', body='sent')).string()",
    "pyxhr": "pyodide.http.pyxhr.post(site + {path!r}, data='sent').text",
    "javascript": "await (await js.fetch(site + {path!r}, method='POST', body='sent')).text()",
}


def test_what_the_page_shows_works(kernel: Kernel, site: Site) -> None:
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    before = len(site.arrived)
    ran = kernel.run(code.replace("https://api.example.org", site.url("")))
    assert ran.status == "ok", ran.error
    assert [one.path for one in site.arrived[before:]] == ["/items"] * 3


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_a_request_arrives_and_its_answer_is_text(kernel: Kernel, site: Site, code: str) -> None:
    ran = kernel.run(f"seen = json.loads({code.format(path='/echo?a=b')})\nseen['method'], seen['path'], seen['body']")
    assert ran.result == "('POST', '/echo?a=b', 'sent')", ran.error
    assert site.arrived[-1].header("host") == [f"127.0.0.1:{site.port}"]


OTHER_LANGUAGES = {
    "fetch": "%%js\nvar got = await fetch('{url}', {{ method: 'POST', body: 'sent' }}); console.log(await got.text())",
    "curl": "%%bash\ncurl -sS -d sent '{url}'",
    "wget": "%%bash\nwget -O - '{url}'",
}


@pytest.mark.parametrize("code", OTHER_LANGUAGES.values(), ids=OTHER_LANGUAGES.keys())
def test_a_request_of_another_language_arrives_and_its_answer_is_text(kernel: Kernel, site: Site, code: str) -> None:
    ran = kernel.run(code.format(url=site.url("/echo?a=b")))
    assert ran.status == "ok", ran.error
    seen = json.loads(ran.text())
    assert (seen["method"], seen["path"], seen["body"]) == (
        ("GET", "/echo?a=b", "") if "wget" in code else ("POST", "/echo?a=b", "sent")
    )
    refused = kernel.run(code.format(url="http://example.org/"))
    assert "example.org is not in [network] allow_hosts of mcp.toml" in refused.text("stderr") + refused.error


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_a_host_that_is_not_allowed_is_refused_with_what_to_do(kernel: Kernel, code: str) -> None:
    ran = kernel.run(f"there, site = site, 'http://example.org'\ntry: {code.format(path='/')}\nfinally: site = there")
    assert "example.org is not in [network] allow_hosts of mcp.toml" in ran.error


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_a_refused_request_shows_the_line_and_one_sentence(kernel: Kernel, code: str) -> None:
    try:
        ran = kernel.run(f"there, site = site, 'http://example.org'\n{code.format(path='/')}")
    finally:
        kernel.run("site = there")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(ran.reply["content"]["traceback"])).splitlines()
    assert [lines[0].endswith("line 2"), lines[1]] == [True, f"    {code.format(path='/')}"]
    assert "example.org is not in [network] allow_hosts of mcp.toml: the owner of this server can add it" in lines[2]
    assert (len(lines), len("\n".join(lines)) < 400) == (3, True)


def test_the_errors_of_a_refused_request_are_those_of_the_libraries(kernel: Kernel) -> None:
    ran = kernel.run(
        "import urllib.error\nfrom pyodide.ffi import JsException\n"
        "try: requests.get('http://example.org')\nexcept requests.ConnectionError as error: print(1)\n"
        "try: urlopen('http://example.org')\n"
        "except urllib.error.URLError as error: print(2, hasattr(error, '__notes__'))\n"
        "try: await pyodide.http.pyfetch('http://example.org')\nexcept OSError: print(3)\n"
        "try: await js.fetch('http://example.org')\nexcept JsException: print(4)"
    )
    assert ran.text() == "1\n2 False\n3\n4\n", ran.error


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_a_request_that_waits_is_interrupted_and_given_up(kernel: Kernel, site: Site, code: str) -> None:
    site.ended.clear()
    before = len(site.arrived)
    ran = kernel.interrupt_once_it_prints(
        f"kept = 1\nprint('now', flush=True)\n{code.format(path='/silent')}", ready=lambda: len(site.arrived) > before
    )
    assert (ran.error.partition(":")[0], ran.state_lost) == ("KeyboardInterrupt", False)
    assert kernel.run("kept").result == "1"
    assert site.ended.wait(DEADLINE), "the connection is still there"


def test_the_rest_of_the_libraries_works_too(kernel: Kernel, site: Site) -> None:
    ran = kernel.run(
        "with requests.Session() as session:\n"
        "    first = session.get(site + '/redirect?to=/echo', params={'status': 307}, timeout=30)\n"
        "assert (first.status_code, first.url) == (200, site + '/echo')\n"
        "assert session.head(site + '/echo').content == b''\n"
        "assert requests.get(site + '/gzip').text == 'unpacked' == urlopen(site + '/gzip').read().decode()\n"
        "assert urlopen(site + '/redirect?to=/echo').url == site + '/echo'\n"
        "assert json.load(pyodide.http.open_url(site + '/echo'))['method'] == 'GET'\n"
        "answers = await asyncio.gather(*(pyodide.http.pyfetch(f'{site}/{n}') for n in range(50)))\n"
        "assert [(await one.json())['path'] for one in answers] == [f'/{n}' for n in range(50)]\n"
        "import urllib.error\n"
        "try: urlopen('http://[::1]/')\n"
        "except urllib.error.URLError as error: print(error.reason)\n"
    )
    assert ran.status == "ok", ran.error
    assert (
        ran.text() == "[::1] is not in [network] allow_hosts of mcp.toml: the owner of this server can add it there\n"
    )


def test_requests_keeps_cookies_and_reasons_and_tells_a_timeout(kernel: Kernel, site: Site) -> None:
    ran = kernel.run(
        "with requests.Session() as session:\n"
        "    first = session.post(site + '/login', data={'name': 'a'})\n"
        "    got = first.history[0].cookies.get_dict()\n"
        "    print(session.cookies.get_dict(), got, session.get(site + '/echo').reason)\n"
        "try: requests.get(site + '/redirect?status=500&to=/').raise_for_status()\n"
        "except requests.HTTPError as error: print(str(error).partition(' for url')[0])\n"
        "for options in ({}, {'stream': True}):\n"
        "    try: requests.get(site + '/silent', timeout=0.2, **options)\n"
        "    except requests.Timeout as error: print(type(error).__name__, error)\n"
        "bodies = b'a', 'b', iter([b'c', b'd'])\n"
        "texts = [requests.post(site + '/echo', data=body).json()['body'] for body in bodies]\n"
        "print(texts, b''.join(requests.get(site + '/gzip', stream=True).iter_content(3)))"
    )
    assert ran.status == "ok", ran.error
    cookies = {"one": "1", "two": "2"}
    late = f"ReadTimeout the request to 127.0.0.1:{site.port} took longer than 0.2 s"
    assert ran.text().splitlines() == [
        f"{cookies} {cookies} OK",
        "500 Server Error: Internal Server Error",
        late,
        late,
        "['a', 'b', 'cd'] b'unpacked'",
    ]
    assert next(one for one in site.arrived[::-1] if one.header("cookie")).header("cookie") == ["one=1; two=2"]


def test_the_guest_uses_a_secret_that_it_never_sees(kernel: Kernel, site: Site) -> None:
    ran = kernel.run("answer = requests.get(site + '/reflect')\nprint(answer.text, answer.headers, answer.reason)")
    assert site.arrived[-1].header("x-secret") == [SECRET]
    assert "[redacted]" in ran.text()
    assert SECRET not in ran.text()


def test_a_flood_of_forged_requests_leaves_the_kernel_small_and_the_site_in_peace(kernel: Kernel, site: Site) -> None:
    before = len(site.arrived)
    flood = kernel.send(
        "from kernelmcp_guest.bridge import bridge, request_id\n"
        "call = {'call': 'fetch', 'url': site + '/silent', 'headers': []}\n"
        "content = {'number': 1, 'arguments': call}\n"
        "frame = json.dumps({'type': 'call', 'id': request_id.get(), 'content': content})\n"
        "for _ in range(10_000): bridge.emit(frame)\n"
        "print('sent', flush=True)\n"
        "await asyncio.sleep(600)"
    )
    kernel.output(flood)  # comes behind the forged frames: they have all been looked at
    assert wait_until(lambda: len(site.arrived) == before + 4)
    assert kernel.process.memory_info().rss < 300e6
    kernel.interrupt()
    assert kernel.finish(flood).error.startswith("KeyboardInterrupt")
    assert len(site.arrived) == before + 4
    assert kernel.run("1 + 1").result == "2"


def test_a_request_ends_with_its_cell(kernel: Kernel, site: Site) -> None:
    site.ended.clear()
    before = len(site.arrived)
    request = kernel.send("task = asyncio.ensure_future(js.fetch(site + '/silent'))\ninput()", allow_stdin=True)
    assert kernel.client.get_stdin_msg(timeout=DEADLINE)
    assert wait_until(lambda: len(site.arrived) > before)
    kernel.client.input("")
    assert kernel.finish(request).status == "ok"
    assert site.ended.wait(DEADLINE), "the connection is still there"
    failed = kernel.run("try: await task\nexcept Exception as error: print(error)")
    assert "the cell that made this call has ended" in failed.text()
