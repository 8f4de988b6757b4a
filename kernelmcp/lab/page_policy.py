"""The Content-Security-Policy of Lab's page, which limits what it may load, run and show: the second barrier behind
`tame.py`.

Scripts come only from Lab's own folders on the same server: a user's file never counts as a script, whatever its name.
Lab itself needs `unsafe-eval`. No other host is contacted: an address can carry data away.
"""

import re
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import AuthenticatedFileHandler, JupyterHandler
from tornado import web

_HOST = re.compile(r"[A-Za-z0-9.-]{1,255}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
# Folders of Lab, of its extensions, and of Jupyter Server's own pages.
_SCRIPTS = ("static/", "lab/extensions/")
_PICTURES = (*_SCRIPTS, "lab/api/themes/", "kernelspecs/")


def content_security_policy(host: str, base: str) -> str:
    """`host`: as the browser calls this server. A source with a path needs one; nothing is loaded from an invalid
    one."""

    def own(folders: tuple[str, ...]) -> str:
        return " ".join(f"{host}{base}{folder}" for folder in folders) if _HOST.fullmatch(host) else ""

    return "; ".join(
        (
            "default-src 'self'",
            f"script-src {own(_SCRIPTS)} 'unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            f"img-src {own(_PICTURES)} data: blob:",
            "font-src 'self' data:",
            "media-src data: blob:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "frame-src 'none'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def install() -> None:
    """Apply the policy to every handler of this process."""
    handler: Any = JupyterHandler
    handler.content_security_policy = property(
        lambda self: content_security_policy(self.request.host, self.settings["base_url"])
    )


class Files(AuthenticatedFileHandler):
    """Serves the user's files as text: nothing that a page could run or draw, and on a page without an origin. Lab's
    Download asks for a notebook here, and gets a copy (`Contents.unlocked`)."""

    @property
    def content_security_policy(self) -> str:
        return "default-src 'none'; sandbox"

    def get_content_type(self) -> str:
        return "text/plain; charset=UTF-8"

    @web.authenticated
    @authorized
    async def get(self, path: str, include_body: bool = True) -> None:
        inherited: Any = super()
        contents: Any = self.contents_manager
        self.check_xsrf_cookie()
        copy = await contents.unlocked(path) if path.endswith(".ipynb") else None
        if copy is None:
            await inherited.get(path, include_body=include_body)
            return
        self.set_attachment_header(path.rpartition("/")[2])
        self.set_header("Content-Type", self.get_content_type())
        self.set_header("Cache-Control", "no-cache")
        await self.finish(copy)


class Gone(web.RequestHandler):
    """Disables handlers of Jupyter Server that Lab does not need: conversion, and pages made from users' files."""

    def prepare(self) -> None:
        raise web.HTTPError(404)


NEEDLESS = [(pattern, Gone) for pattern in (r"/nbconvert/.*", r"/api/nbconvert", r"/view/.*")]
