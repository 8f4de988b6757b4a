"""Configures JupyterLab and runs it in this process. It reads neither the user's Jupyter configuration nor that of the
current folder: both may contain other people's code."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelmcp.atomic import replace_text
from kernelmcp.errors import ConfigurationError, is_full
from kernelmcp.lab.shared.stores import FILE_IDS, HISTORIES, SESSIONS, check_stores

# Disabled: extensions that run code from an output, start programs, offer kernels, or use the internet.
DISABLED_EXTENSIONS = (
    "@jupyterlab/javascript-extension",
    "@jupyterlab/vega5-extension",
    "@jupyterlab/mermaid-extension",
    "@jupyterlab/terminal-extension",
    "@jupyterlab/extensionmanager-extension",
    "@jupyterlab/apputils-extension:announcements",
    "@jupyterlab/htmlviewer-extension",
    "@jupyterlab/pdf-extension",
    "@jupyterlab/launcher-extension",
    "@jupyterlab/lsp-extension",
    # Lab has only notebooks: other files and settings cannot be created or changed.
    "@jupyterlab/fileeditor-extension",
    "@jupyterlab/settingeditor-extension",
    "@jupyterlab/csvviewer-extension",
    "@jupyterlab/imageviewer-extension",
    "@jupyterlab/markdownviewer-extension",
    "@jupyterlab/notebook-extension:language-server",
)
HOST = "127.0.0.1"
DEFAULT_PORT = 8888
_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/apputils-extension:sanitizer": {"allowCommandLinker": False},
}


def run(
    lab: Path,
    runtime_root: Path,
    sessions: Path,
    port: int | None,
    token: str,
    open_browser: bool,
    on_ready: Callable[[int], None],
) -> None:
    """Run until told to end. `on_ready` gets the port. The caller has created `lab` and holds its lock. Raises
    `ConfigurationError`."""
    os.umask(0o077)  # others' libraries create databases with it
    notebooks, state = lab / "notebooks", lab / "state"
    try:
        _make_files(notebooks, state)
    except OSError as exc:
        advice = "Free disk space." if is_full(exc) else "Set server.home (KERNELMCP_HOME) to a writable directory."
        raise ConfigurationError(f"{exc.filename or lab} cannot be written: {exc.strerror}", advice) from exc
    _own_environment(state)
    from kernelmcp.lab.shared.history import complete_files

    try:
        complete_files(state / HISTORIES, state / FILE_IDS, notebooks)
    except Exception as exc:  # noqa: BLE001 - a damaged history keeps Lab not shut
        sys.stderr.write(f"kernelmcp: what Lab had not saved when it ended could not be saved now: {exc}\n")
    from jupyter_core.paths import jupyter_config_dir
    from jupyterlab.labapp import LabApp
    from traitlets.config import Config

    from kernelmcp.lab.server_app import LabServer

    ours = {"state": str(state), "runtime_root": str(runtime_root), "sessions": str(sessions)}
    LabApp.serverapp_class = LabServer
    try:
        app: Any = LabApp.initialize_server(
            argv=[], config=Config(_configuration(notebooks, state, port, token, open_browser, ours))
        )
        app.io_loop.add_callback(lambda: on_ready(app.port))  # after the callback that starts listening
        app.start()
    finally:
        shutil.rmtree(jupyter_config_dir(), ignore_errors=True)  # a temporary one, because of JUPYTER_NO_CONFIG


def _make_files(notebooks: Path, state: Path) -> None:
    """Create what Lab reads at its start. Raises OSError."""
    for folder in ("config", "data", "runtime", "settings", "workspaces", "app-settings", "ipython"):
        (state / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    notebooks.mkdir(mode=0o700, exist_ok=True)
    # Delete a killed Lab's token, but keep the cookie secret: an open tab stays signed in.
    for stale in (state / "runtime").iterdir():
        if stale.is_file() and stale.name != "jupyter_cookie_secret":
            stale.unlink(missing_ok=True)
    check_stores(state)
    disabled = dict.fromkeys(DISABLED_EXTENSIONS, True)
    replace_text(state / "app-settings/page_config.json", json.dumps({"disabledExtensions": disabled}))
    replace_text(state / "app-settings/overrides.json", json.dumps(_SETTINGS))


def _own_environment(state: Path) -> None:
    """Called before Jupyter is imported. Jupyter also searches the current folder for configuration files."""
    os.chdir(state / "config")
    for name in list(os.environ):
        if name.startswith("JUPYTER"):
            del os.environ[name]
    os.environ |= {
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_CONFIG_DIR": str(state / "config"),
        "JUPYTER_DATA_DIR": str(state / "data"),
        "JUPYTER_RUNTIME_DIR": str(state / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(state / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(state / "workspaces"),
        "IPYTHONDIR": str(state / "ipython"),
    }
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]


def _configuration(
    notebooks: Path, state: Path, port: int | None, token: str, open_browser: bool, ours: dict[str, str]
) -> dict[str, dict[str, Any]]:
    file_ids = {"db_path": str(state / FILE_IDS)}
    return {
        "Application": {"log_level": "ERROR"},
        "ServerApp": {
            "ip": HOST,
            "port": DEFAULT_PORT if port is None else port,
            "port_retries": 50 if port is None else 0,
            "open_browser": open_browser,
            "answer_yes": True,
            "allow_root": True,
            "quit_button": False,
            "terminals_enabled": False,
            "root_dir": str(notebooks),
            "jpserver_extensions": {
                "jupyterlab": True,
                "jupyter_server_ydoc": True,
                "jupyter_server_fileid": True,
                "kernelmcp.lab.extension": True,
            },
            "kernel_manager_class": "kernelmcp.lab.kernels.SessionKernels",
            "kernel_websocket_connection_class": "kernelmcp.lab.connections.BrowserConnection",
            "kernel_spec_manager_class": "kernelmcp.lab.specs.SessionSpecs",
            "contents_manager_class": "kernelmcp.lab.shared.contents.Contents",
            "tornado_settings": {
                "headers": {
                    "X-DNS-Prefetch-Control": "off",
                },
                "kernelmcp_lab": ours,
            },
        },
        "MultiKernelManager": {
            "default_kernel_name": "kernelmcp",
            "kernel_manager_class": "kernelmcp.lab.kernels.AttachedKernel",
        },
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"token": token, "allow_password_change": False},
        "LabApp": {
            "extension_manager": "readonly",
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            "news_url": None,
            "extra_labextensions_path": [str(Path(__file__).parent / "labextensions")],
        },
        "LabServerApp": {"app_settings_dir": str(state / "app-settings")},
        # Both stores persist: with only one of them, tabs of a killed Lab would duplicate the cells.
        "YDocExtension": {
            "document_cleanup_delay": None,
            "ystore_class": "kernelmcp.lab.shared.history.History",
            "session_store_path": str(state / SESSIONS),
        },
        "ArbitraryFileIdManager": file_ids,
        "LocalFileIdManager": file_ids,
        "FileContentsManager": {"use_atomic_writing": False},  # ours always is: contents.py
        "Contents": {"files_handler_class": "kernelmcp.lab.page_policy.Files"},
        "ContentsManager": {"allow_hidden": False},
    }
