"""`kernelmcp lab` says in a sentence why it does not open, and reads nobody else's configuration."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from .support import DEADLINE_SECONDS, Running, running

# -- one that runs -----------------------------------------------------------------------------------------------------

LOADED = "open({!r}, 'a').write(__file__)"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path, dict[str, str]]]:
    """A Lab that is started where everything that Jupyter could read is somebody else's."""
    folder = tmp_path_factory.mktemp("lab")
    mark, cwd, user = folder / "loaded", folder / "cwd", folder / "user"
    for place in (cwd, user / ".jupyter", user / "config", user / ".ipython/profile_default/startup"):
        place.mkdir(parents=True)
        for name in ("jupyter_config.py", "jupyter_server_config.py", "jupyter_lab_config.py", "ipython_config.py"):
            (place / name).write_text(LOADED.format(str(mark)))
    (cwd / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": {"ip": "0.0.0.0", "token": ""}}))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")},
        "HOME": str(user),
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_SERVER__RUNTIME": str(folder / "rt"),
        "JUPYTER_CONFIG_DIR": str(user / "config"),
        "JUPYTER_CONFIG_PATH": str(user / "config"),
        "JUPYTER_TOKEN": "guessed",
        "JUPYTERLAB_SETTINGS_DIR": str(user / "settings"),
    }
    with running(environment, cwd) as lab:
        yield lab, folder, environment


def test_lab_does_not_import_the_parsers_of_jsonschema_s_formats(tmp_path: Path) -> None:
    metadata.version("rfc3987-syntax")  # jsonschema would import it, and with it lark
    environment = {
        **os.environ,
        "KERNELMCP_HOME": str(tmp_path / "home"),
        "KERNELMCP_SERVER__RUNTIME": str(tmp_path / "rt"),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    said = tmp_path / "stderr"
    with said.open("wb") as stderr, running(environment, tmp_path, stderr=stderr):
        pass
    imported = set(re.findall(r"^import time: .*\| +([\w.]+)$", said.read_text(), re.MULTILINE))
    assert "jsonschema" in imported
    assert not [name for name in imported if name.partition(".")[0] == "lark"]


Hostile = tuple[Running, Path, dict[str, str]]


def test_no_configuration_of_the_user_or_of_the_folder_is_read(hostile: Hostile) -> None:
    lab, folder, _ = hostile
    assert not (folder / "loaded").exists()
    assert lab.root.startswith("http://127.0.0.1:")
    assert lab.get("/api/status")[0] == 200
    assert [lab.get("/api/kernels", token)[0] for token in ("", "guessed")] == [403, 403]
    with socket.socket() as probe, pytest.raises(OSError, match="refused"):
        # Loopback alone, and on it alone this address.
        probe.connect(("127.0.0.2", int(lab.root.rpartition(":")[2])))


def test_what_could_run_code_or_ask_the_internet_is_off(hostile: Hostile) -> None:
    lab = hostile[0]
    status, page, headers = lab.get("/lab")
    assert status == 200
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    own = f"{lab.root.removeprefix('http://')}/"
    assert policy["script-src"] == f"{own}static/ {own}lab/extensions/ 'unsafe-eval'"
    assert [policy[name] for name in ("object-src", "frame-src", "base-uri", "form-action")] == ["'none'"] * 4
    assert "'self'" not in policy["img-src"]
    assert "//" not in policy["img-src"]
    assert policy["connect-src"] == "'self'"
    [data] = re.findall(rb'<script id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    config = json.loads(data)
    off = {"javascript", "vega5", "mermaid", "terminal", "extensionmanager"}
    assert {f"@jupyterlab/{name}-extension" for name in off} <= set(config["disabledExtensions"])
    assert not config["terminalsAvailable"]
    assert config["news"] == {"disabled": True}
    assert lab.get("/api/terminals")[0] == 404
    assert lab.get("/terminals/websocket/1")[0] == 404
    notification = json.loads(lab.get("/lab/api/settings/@jupyterlab/apputils-extension:notification")[1])
    properties = notification["schema"]["properties"]
    assert (properties["fetchNews"]["default"], properties["checkForUpdates"]["default"]) == ("false", False)


def test_a_file_of_the_users_is_text_wherever_it_is_asked_for(hostile: Hostile) -> None:
    lab, folder, _ = hostile
    for name, content in {"a.js": "window.EVIL=1", "b.html": "<script>EVIL=1</script>", "c.svg": "<svg/>"}.items():
        file = folder / "home" / "lab" / "notebooks" / name
        file.write_text(content)
        try:
            status, body, headers = lab.get(f"/files/{name}")
        finally:
            file.unlink()
        assert (status, body.decode()) == (200, content)
        assert headers["Content-Type"] == "text/plain; charset=UTF-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    for path in ("/view/b.html", "/nbconvert/html/x.ipynb", "/api/nbconvert"):
        assert lab.get(path)[0] == 404, path


def test_a_downloaded_record_is_a_copy_with_cells_that_can_be_edited(hostile: Hostile) -> None:
    lab, folder, _ = hostile
    metadata = {"editable": False, "deletable": False, "kernelmcp": {"execution_id": "1"}, "tags": ["a"]}
    cell = {"cell_type": "markdown", "id": f"k{0:023}", "metadata": metadata, "source": "é"}
    file = folder / "home" / "lab" / "notebooks" / "é 1.ipynb"
    file.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    missing = [lab.get(f"/files/{path}.ipynb")[0] for path in ("none", "../state/a", "%2e%2e/state/a", "..%2f..%2fa")]
    try:
        login = lab.get("/files/%C3%A9%201.ipynb", token="")[1]
        status, body, headers = lab.get("/files/%C3%A9%201.ipynb?download=1")
    finally:
        file.unlink()
    assert status == 200
    assert json.loads(body)["cells"] == [cell | {"metadata": {"tags": ["a"]}}]
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Content-Type"] == "text/plain; charset=UTF-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["Content-Disposition"] == "attachment; filename*=utf-8''%C3%A9%201.ipynb"
    assert headers["Cache-Control"] == "no-cache"
    assert b"execution_id" not in login
    assert missing == [404] * 4


def test_another_notebook_is_downloaded_as_its_file_is(hostile: Hostile) -> None:
    lab, folder, _ = hostile
    file = folder / "home" / "lab" / "notebooks" / "plain.ipynb"
    cell = {"cell_type": "markdown", "metadata": {}, "source": "kernelmcp \ud83d"}
    file.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}))
    try:
        status, body, headers = lab.get("/files/plain.ipynb?download=1")
        assert (status, body) == (200, file.read_bytes())
    finally:
        file.unlink()
    assert headers["Content-Type"] == "text/plain; charset=UTF-8"
    assert headers["Content-Disposition"] == "attachment; filename*=utf-8''plain.ipynb"


def test_only_notebooks_are_shown_of_the_home(hostile: Hostile) -> None:
    lab, folder, _ = hostile
    (folder / "home" / "tokens.toml").write_text("secret")
    assert json.loads(lab.get("/api/contents")[1])["content"] == []
    for path in ("../state/address.json", "%2e%2e/state/address.json", "..%2f..%2ftokens.toml", "/etc/passwd"):
        for api in ("/api/contents/", "/files/", "/lab/api/listings/", "/api/contents/checkpoints/"):
            status, body, _ = lab.get(api + path)
            assert status in (400, 403, 404), (api, path)
            assert b"secret" not in body
            assert b"lab?token=" not in body


def test_what_it_keeps_is_its_users_alone(hostile: Hostile) -> None:
    _, folder, _ = hostile
    lab_folder = folder / "home" / "lab"
    assert stat.S_IMODE(lab_folder.stat().st_mode) == 0o700
    files = [file for file in lab_folder.rglob("*") if not file.is_symlink()]
    assert any(file.suffix in (".db", ".sqlite") for file in files), files
    assert [file for file in files if file.stat().st_mode & 0o077] == []


def test_no_kernel_is_started_for_a_notebook_that_is_no_sessions(hostile: Hostile) -> None:
    lab = hostile[0]
    kernelspecs = json.loads(lab.get("/api/kernelspecs")[1])
    assert (kernelspecs["default"], set(kernelspecs["kernelspecs"])) == ("kernelmcp", {"kernelmcp"})
    sessions = {"path": "x.ipynb", "name": "x", "type": "notebook", "kernel": {"name": "kernelmcp"}}
    for path, body in {"/api/kernels": {}, "/api/sessions": sessions}.items():
        headers = {"Authorization": f"token {lab.token}"}
        request = urllib.request.Request(lab.root + path, json.dumps(body).encode(), headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=DEADLINE_SECONDS)
        assert refused.value.code == 403
        assert "starts no kernels of its own" in json.loads(refused.value.read())["message"]


@pytest.mark.parametrize("path", ["/api/collaboration/room/JupyterLab:globalAwareness", "/api/events/subscribe"])
def test_a_page_of_another_site_cannot_join_with_the_browsers_cookie(hostile: Hostile, path: str) -> None:
    lab = hostile[0]
    cookie = lab.get("/lab")[2]["Set-Cookie"].partition(";")[0]
    assert cookie.startswith("username-")

    def status(origin: str) -> int:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        client = http.client.HTTPConnection(lab.root.removeprefix("http://"), timeout=DEADLINE_SECONDS)
        with closing(client):
            headers = {**upgrade, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Cookie": cookie, "Origin": origin}
            client.request("GET", path, headers=headers)
            return client.getresponse().status

    assert [status(origin) for origin in (lab.root, "http://evil.example", "http://127.0.0.1:1")] == [101, 403, 403]


def test_a_second_lab_says_where_the_first_one_is(hostile: Hostile, tmp_path: Path) -> None:
    lab, _, environment = hostile
    command = [sys.executable, "-m", "kernelmcp", "lab", "--no-browser"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 1
    assert lab.address in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_soon_and_leaves_neither_a_process_nor_a_file(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "KERNELMCP_HOME": str(tmp_path / "home"),
        "KERNELMCP_SERVER__RUNTIME": str(tmp_path / "rt"),
    }
    with running(environment, tmp_path) as lab:
        lab.process.send_signal(number)
        assert lab.process.wait(DEADLINE_SECONDS) == 0, "a Lab that waits for its sockets never ends"
        assert not (tmp_path / "home/lab/state/address.json").exists()
    assert list(temporary.iterdir()) == []
