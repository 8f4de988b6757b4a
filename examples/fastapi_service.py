"""A web service with a kernel for each of its users: kernelmcp inside a FastAPI application.

The application authenticates its users; kernelmcp is mounted below it and takes them over, each with sessions,
variables and files of their own. `POST /run` runs a cell in the user's session, for programs that do not speak MCP.
An MCP client of the same user connects to /kernel/mcp with the same token, and can work in the same session, `web`.

In the environment that kernelmcp is installed in:

    pip install fastapi
    export USERS='{"alice": "a-long-token", "bob": "another-one"}'
    python examples/fastapi_service.py

    curl -H 'Authorization: Bearer a-long-token' --json '{"code": "x = 41"}' http://127.0.0.1:8001/run
    curl -H 'Authorization: Bearer a-long-token' --json '{"code": "x + 1"}' http://127.0.0.1:8001/run
    claude mcp add --transport http web http://127.0.0.1:8001/kernel/mcp --header 'Authorization: Bearer a-long-token'
"""

import json
import os
import secrets
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ImageContent, TextContent
from pydantic import BaseModel, Field
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from kernelmcp import create_server

USERS: dict[str, str] = json.loads(os.environ["USERS"])
SESSION = "web"
# kernelmcp answers `running` after 45 s at the latest; the rest is for a busy machine.
TIMEOUT_SECONDS = 90


class ByToken(AuthenticationBackend):
    """Put your own authentication here. kernelmcp only asks for `scope["user"]`, and for a name in it.

    It raises for everybody else, so no route below has to look whether there is a user. Under another name than
    localhost, also set `KERNELMCP_TRANSPORT_HTTP__ALLOWED_HOSTS` to that name.
    """

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        sent = conn.headers.get("authorization", "").encode()
        for name, token in USERS.items():
            if secrets.compare_digest(sent, f"Bearer {token}".encode()):
                return AuthCredentials(["run"]), SimpleUser(name)
        raise AuthenticationError("a token is needed")


def refuse(conn: HTTPConnection, error: AuthenticationError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 401, {"WWW-Authenticate": "Bearer"})


class Cell(BaseModel):
    code: str = Field(max_length=100_000)
    timeout_seconds: float = Field(default=30, gt=0, le=40)


class Picture(BaseModel):
    media_type: str
    base64: str


class Ran(BaseModel):
    """What the code printed and returned is untrusted: escape it in a page, and never evaluate it."""

    status: str
    text: str
    pictures: list[Picture]


server = create_server()  # settings as of the command: files and KERNELMCP_ variables
app = FastAPI(lifespan=server.lifespan)
app.add_middleware(AuthenticationMiddleware, backend=ByToken(), on_error=refuse)
app.mount("/kernel", server.http_app())


async def call(request: Request, tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool as the user of this request: through the mounted application, without the network."""
    headers = {name: request.headers[name] for name in ("authorization", "cookie") if name in request.headers}
    transport = httpx2.ASGITransport(app)
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers, timeout=TIMEOUT_SECONDS) as http,
        Client(streamable_http_client("http://127.0.0.1/kernel/mcp", http_client=http)) as client,
    ):
        return await client.call_tool(tool, {"session_id": SESSION, **arguments})


@app.post("/run")
async def run(cell: Cell, request: Request) -> Ran:
    """Run a cell in the user's session. Code that raises is an ordinary answer, with status `error`."""
    result = await call(request, "execute_code", {"code": cell.code, "timeout": cell.timeout_seconds})
    fields = (result.meta or {}).get("kernelmcp/result", {})
    if "status" not in fields:
        raise HTTPException(422, detail=result.content[0].text)  # refused: the text says why
    return Ran(
        status=fields["status"],
        text="\n".join(block.text for block in result.content if isinstance(block, TextContent)),
        pictures=[
            Picture(media_type=block.mime_type, base64=block.data)
            for block in result.content
            if isinstance(block, ImageContent)
        ],
    )


@app.delete("/session")
async def forget(request: Request) -> dict[str, str]:
    """Delete the user's session with its files."""
    result = await call(request, "destroy_session", {})
    if result.is_error:
        raise HTTPException(409, detail=result.content[0].text)
    return {"forgotten": request.user.display_name}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8001")))
