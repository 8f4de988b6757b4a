"""An MCP server over HTTP that wants OAuth, and is its own authorization server: everybody who asks is let in.

    python oauth_server.py SECONDS [USES [WRONG]]

An access token is good for so long and for so many requests (0: for any number). WRONG is JSON: `host` is where it says
that it is, `metadata` replaces fields of the authorization server's, `iss` is in what the browser brings back,
`redirects` is a path that leads elsewhere; "HERE" in them is its own address. The first line of stdout is the port.

Refresh tokens rotate: a second use of one is a theft, and ends all logins. Its tool `forget` makes every access token
useless, `forget_all` every refresh token too; `renewals` counts; `be_ill` lets the authorization server answer the next
renewals with 503.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections import Counter
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse


class LetsEverybodyIn:
    def __init__(self, seconds: int, uses: int | None, iss: str | None) -> None:
        self.seconds = seconds
        self.iss = iss
        self.uses = uses
        self.used: Counter[str] = Counter()
        self.rotated: set[str] = set()
        self.ill = 0
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.renewals = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            client_id=client.client_id,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state, iss=self.iss)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.token(client.client_id)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.rotated:
            self.access.clear()
            self.refresh.clear()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.rotated.add(refresh_token.token)
        self.renewals += 1
        return self.token(client.client_id)

    async def load_access_token(self, token: str) -> AccessToken | None:
        self.used[token] += 1
        if self.uses is not None and self.used[token] > self.uses:
            self.access.pop(token, None)
        found = self.access.get(token)
        return found if found is not None and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def token(self, client_id: str) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        ends = int(time.time()) + self.seconds
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=[], expires_at=ends)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=[])
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.seconds)


def said_of(issuer: str, wrong: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The documents that a client looks for."""
    of_resource = {"resource": f"{issuer}/mcp", "authorization_servers": [issuer]}
    return {
        "/.well-known/oauth-protected-resource/mcp": of_resource,
        "/.well-known/oauth-protected-resource": of_resource,
        "/.well-known/oauth-authorization-server": {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "registration_endpoint": f"{issuer}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
            **wrong.get("metadata", {}),
        },
    }


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    wrong: dict[str, Any] = json.loads(sys.argv[3].replace("HERE", here)) if len(sys.argv) > 3 else {}
    uses = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    provider = LetsEverybodyIn(int(sys.argv[1]), uses or None, wrong.get("iss"))
    issuer = f"http://{wrong.get('host', '127.0.0.1')}:{port}"
    server = MCPServer(
        "guarded",
        auth_server_provider=provider,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(here),  # the library refuses a public one without TLS
            resource_server_url=AnyHttpUrl(f"{issuer}/mcp"),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=False,
        ),
    )
    documents = said_of(issuer, wrong) if wrong else {}

    @server.tool()
    def echo(value: int) -> int:
        return value

    @server.tool()
    def forget() -> str:
        provider.access.clear()
        return "forgotten"

    @server.tool()
    def forget_all() -> str:
        provider.access.clear()
        provider.refresh.clear()
        return "forgotten"

    @server.tool()
    def be_ill(times: int) -> str:
        provider.access.clear()
        provider.ill = times
        return "ill"

    @server.tool()
    def renewals() -> int:
        return provider.renewals

    print(port, flush=True)
    # It answers nobody who asks for it under another name.
    names = TransportSecuritySettings(allowed_hosts=[issuer.removeprefix("http://")])
    app = server.streamable_http_app(transport_security=names)

    async def sometimes_wrong(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == "/token" and provider.ill:
            provider.ill -= 1
            await PlainTextResponse("later", 503)(scope, receive, send)
        elif path == wrong.get("redirects"):
            await RedirectResponse("http://elsewhere.example/")(scope, receive, send)
        elif path in documents:
            await JSONResponse(documents[path])(scope, receive, send)
        else:
            await app(scope, receive, send)

    uvicorn.Server(uvicorn.Config(sometimes_wrong, log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
