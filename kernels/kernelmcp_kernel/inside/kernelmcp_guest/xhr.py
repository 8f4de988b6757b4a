"""`XMLHttpRequest` for `pyodide.http.open_url` and `pyodide.http.pyxhr`, which expect the browser's."""

# ruff: noqa: N802, N815  (the names are JavaScript's)

import base64
import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

from pyodide.ffi import JsException

from kernelmcp_guest.network import fetch


class XMLHttpRequest:
    """The part of the browser's class that pyodide.http uses; synchronous only."""

    status, statusText, responseURL = 0, "", ""
    responseType, timeout, withCredentials = "", 0, False
    response: Any = None

    @classmethod
    def new(cls) -> "XMLHttpRequest":
        return cls()

    def open(
        self, method: str, url: str, is_async: bool = True, user: str | None = None, password: str | None = None
    ) -> None:
        if is_async:
            raise NotImplementedError("use fetch (pyodide.http.pyfetch) for requests that do not block")
        self._method, self._url, self._headers = method, url, list[tuple[str, str]]()
        if user is not None:
            pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode("ascii")
            self._headers.append(("Authorization", f"Basic {pair}"))

    def overrideMimeType(self, mime: str) -> None:
        """Does nothing: bodies are UTF-8 here, or bytes."""

    def setRequestHeader(self, name: str, value: str) -> None:
        self._headers.append((name, value))

    def send(self, body: str | bytes | None = None) -> None:
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        answer = fetch(self._method, self._url, self._headers, raw, timeout=self.timeout / 1000 or None)
        self.status, self.statusText, self.responseURL = answer["status"], answer["reason"], answer["url"]
        self._answered = answer["headers"]
        self.responseText = answer["body"].decode("utf-8", "replace")
        kinds = {"arraybuffer": lambda: answer["body"], "json": lambda: json.loads(answer["body"])}
        self.response = kinds.get(self.responseType, lambda: self.responseText)()

    def getAllResponseHeaders(self) -> str:
        return "".join(f"{name}: {value}\r\n" for name, value in self._answered)

    def getResponseHeader(self, name: str) -> str | None:
        found = [value for key, value in self._answered if key == name.lower()]
        return ", ".join(found) or None


class _PyodideHttp:
    """Gives Pyodide's modules the class that they expect in browsers. They cannot be imported earlier: they hold
    JavaScript objects, which the boot image must not contain."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in ("pyodide.http", "pyodide.http.pyxhr"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _WithRequests(spec.loader))
        return spec


class _WithRequests:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        vars(module).update(XMLHttpRequest=XMLHttpRequest, JsException=JsException)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install() -> None:
    """Patch the modules when they are imported (for the boot image)."""
    sys.meta_path.insert(0, _PyodideHttp())
