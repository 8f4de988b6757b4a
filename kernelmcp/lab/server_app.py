"""The Jupyter server under Lab, with an orderly end: what was just typed is saved, and the kernels are let go of."""

import asyncio

from jupyter_server.serverapp import ServerApp

from kernelmcp.lab.shared.documents import Documents

# What a person typed in the last second is saved in less; SIGTERM ends Lab within three.
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
