"""The Jupyter server under Lab, with an orderly shutdown: it saves recent edits and detaches from the kernels."""

import asyncio

from jupyter_server.serverapp import ServerApp

from kernelmcp.lab.shared.documents import Documents

# Recent edits are saved in less time; SIGTERM ends Lab within three seconds.
SAVE_SECONDS = 1.5


class LabServer(ServerApp):
    kernelmcp_watching: "asyncio.Task[None] | None" = None
    """Set by our extension."""

    async def cleanup_extensions(self) -> None:
        if (watching := self.kernelmcp_watching) is not None:
            watching.cancel()
            await asyncio.wait([watching], timeout=SAVE_SECONDS)
        await Documents(self).save(SAVE_SECONDS)
        await super().cleanup_extensions()
