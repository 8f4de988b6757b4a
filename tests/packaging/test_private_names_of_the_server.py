"""Parts of other libraries that they don't document and that the server uses all the same: each is still there, and no
newer version of its library is installed than one that was tried."""

from __future__ import annotations

import asyncio.streams
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from httpcore2 import AsyncConnectionPool
from httpx2 import AsyncHTTPTransport
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from mcp.client.auth.oauth2 import OAuthClientProvider, OAuthContext
from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.session import ServerSession
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from packaging.requirements import Requirement
from uvicorn import Server as UvicornServer
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

ROOT = Path(__file__).resolve().parents[2]
# Where a name is used: library, class, name.
NAMES: dict[str, list[tuple[str, type, str]]] = {
    "kernelmcp/kernel/process.py": [
        ("jupyter-client", AsyncKernelManager, "_async_launch_kernel"),
        ("jupyter-client", AsyncKernelManager, "_reconcile_connection_info"),
        *(("jupyter-client", LocalProvisioner, name) for name in ("process", "pid", "pgid")),
    ],
    "kernelmcp/mcp_server/assemble.py": [("mcp", MCPServer, "_lowlevel_server")],
    "kernelmcp/mcp_server/resources.py": [("mcp", MCPServer, "_handle_list_resources")],
    "kernelmcp/mcp_server/callers.py": [
        ("mcp", ServerSession, "_request_outbound"),
        ("mcp", DispatchContext, "cancel_requested"),
    ],
    "kernelmcp/mcp_server/notifications.py": [
        ("mcp", ServerSession, "_connection"),
        ("mcp", LowlevelServer, "create_initialization_options"),
    ],
    "kernelmcp/mcp_server/tools/contract_tool.py": [
        ("mcp", Tool, "run"),
        *(("mcp", Tool, name) for name in ("fn", "fn_metadata", "context_kwarg", "parameters")),
    ],
    "kernelmcp/upstreams/conversation.py": [
        ("mcp", JSONRPCDispatcher, "send_raw_request"),  # the lowest level at which a call is a dict, and its result
    ],
    "kernelmcp/upstreams/bounded_http.py": [
        (
            "httpx2",
            AsyncHTTPTransport,
            "_pool",
        ),  # it takes no backend, which bounds heads and pieces
        ("httpcore2", AsyncConnectionPool, "_network_backend"),
    ],
    "kernelmcp/upstreams/logins/oauth.py": [
        ("mcp", OAuthClientProvider, "context"),
        *(
            ("mcp", OAuthContext, name)
            for name in (
                "get_resource_url",
                "is_token_valid",
                "prepare_token_auth",
                "should_include_resource_param",
                "update_token_expiry",
            )
        ),
    ],
    # Its storage forgets when tokens expire and where they are renewed.
    "kernelmcp/upstreams/logins/login_file.py": [
        ("mcp", OAuthContext, name)
        for name in (
            "client_info",
            "current_tokens",
            "oauth_metadata",
            "protected_resource_metadata",
            "token_expiry_time",
        )
    ],
    "kernelmcp/http/mcp_connections.py": [
        ("mcp", StreamableHTTPSessionManager, "_server_instances"),
        ("mcp", StreamableHTTPServerTransport, "close_sse_stream"),
        ("mcp", StreamableHTTPServerTransport, "_read_stream_writer"),
    ],
    "kernelmcp/http/adopted_connections.py": [
        *(
            ("mcp", StreamableHTTPSessionManager, name)
            for name in ("_server_instances", "_session_owners", "_serve_opening_request", "_discard_session")
        ),
    ],
    "kernelmcp/http/http_listener.py": [
        ("uvicorn", UvicornServer, "capture_signals"),
        *(
            ("uvicorn", H11Protocol, name)
            for name in (
                "connection_made",
                "data_received",
                "on_response_complete",
                "connection_lost",
                "send_400_response",
                "client",
                "conn",
                "cycle",
                "loop",
                "transport",
            )
        ),
        *(
            ("uvicorn", RequestResponseCycle, name)
            for name in ("disconnected", "message_event", "response_complete", "response_started")
        ),
    ],
}
USES = [(file, *use) for file, uses in NAMES.items() for use in uses]
# Their minor versions may change what is private.
BOUND = ("httpcore2", "httpx2", "mcp", "uvicorn", "h11", "starlette", "jupyter-client", "ipykernel")


def has(owner: type, name: str) -> bool:
    """As a method, a property or a pydantic field of the class, or set by its `__init__`."""
    fields = getattr(owner, "model_fields", {})
    return hasattr(owner, name) or name in fields or name in owner.__init__.__code__.co_names


@pytest.mark.parametrize(
    ("file", "library", "owner", "name"), USES, ids=[f"{owner.__name__}.{name}" for _, _, owner, name in USES]
)
def test_a_name_that_is_not_promised_is_still_there(file: str, library: str, owner: type, name: str) -> None:
    assert name in (ROOT / file).read_text("utf-8"), f"{file} no longer uses {owner.__name__}.{name}: take it out here"
    assert has(owner, name), f"{library} {version(library)} has no {owner.__name__}.{name} any more, which {file} uses"


def test_the_flow_control_of_asyncio_is_still_there() -> None:
    """kernelmcp/stdio/wire.py writes to a pipe with it, as asyncio's own subprocesses do."""
    assert hasattr(asyncio.streams, "FlowControlMixin"), "this Python has no asyncio.streams.FlowControlMixin any more"


@pytest.mark.parametrize("library", BOUND)
def test_a_library_whose_inner_parts_are_used_has_an_upper_bound(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [requirement] = [found for found in map(Requirement, project["dependencies"]) if found.name == library]
    bounds = {part.operator for part in requirement.specifier} & {"<", "<=", "==", "~="}
    assert bounds, f"{requirement} has no upper bound"
    assert version(library) in requirement.specifier
