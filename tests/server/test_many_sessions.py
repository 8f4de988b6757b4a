"""A home with many stored sessions: none of them is read before the first answer, and then each once."""

from pathlib import Path

import pytest

from .stored_sessions import store_sessions
from .support import Connect
from .test_session_life import call

pytestmark = pytest.mark.anyio
COUNT = 40
# The command line, with a list of the records that it opens, and no sweep of the disk.
LISTED = """
import os, sys
def listed(event, arguments):
    if event == "open" and os.path.basename(str(arguments[0])) in ("session.json", "session.copy.json"):
        file = os.open({opened!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{{arguments[0]}}\\n".encode())
        os.close(file)
sys.addaudithook(listed)
from kernelmcp.sessions.storage import old_sessions
old_sessions.FIRST_SWEEP_SECONDS = 3600
from kernelmcp.cli import main
sys.exit(main(["serve"]))
"""


def opened_records(file: Path, names: list[str]) -> list[str]:
    """Those of these sessions that were opened, by the session's name."""
    opened = [Path(line).parent.name for line in file.read_text().splitlines()] if file.exists() else []
    return sorted(name for name in opened if name in names)


async def test_no_stored_session_is_read_before_the_first_cell_has_run(connect: Connect, tmp_path: Path) -> None:
    names = store_sessions(tmp_path / "home", COUNT)
    opened = tmp_path / "opened"
    async with connect(program=LISTED.format(opened=str(opened))) as client:
        ran = await call(client, "execute_code", code="1 + 1")
        assert (ran["result"], opened_records(opened, names)) == ("2", [])
        listed = await call(client, "get_sessions", limit=100)
        assert [one["session_id"] for one in listed["sessions"]] == [ran["session_id"], *names]
        assert opened_records(opened, names) == names, "one of the two copies is enough"
