"""The state that a client returns with an answer (MCP 2026-07-28): sealed, as long-lived as the question, and with the
slot of its server in front, by which a load balancer finds the cell that waits."""

from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateSecurity

from kernelmcp.executions import approvals, questions

# For the way back of an answer that was given in the last moment.
MARGIN_SECONDS = 60.0


def request_states(secret: bytes, slot: str | None) -> RequestStateSecurity:
    """`secret`: of all servers with this home. `slot`: if there may be several."""
    seconds = max(approvals.MAX_SECONDS, questions.MAX_SECONDS) + MARGIN_SECONDS
    return RequestStateSecurity(codec=_OfServer(secret, slot), ttl=seconds)


class _OfServer(AESGCMRequestStateCodec):
    def __init__(self, secret: bytes, slot: str | None) -> None:
        super().__init__([secret])
        self._slot = slot

    def seal(self, payload: bytes) -> str:
        sealed = super().seal(payload)
        return sealed if self._slot is None else f"{self._slot}-{sealed}"

    def unseal(self, token: str) -> bytes:
        return super().unseal(token if self._slot is None else token.partition("-")[2])
