"""What a fresh kernel is asked to install again."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import REPORT
from kernelmcp.sessions.installed_packages import MAX_AT_ONCE, Package, restore

pytestmark = pytest.mark.anyio


class Index:
    """A kernel that installs all but one package."""

    def __init__(self, missing: str) -> None:
        self.missing = missing
        self.installed: list[str] = []

    async def execute(self, code: str, *_: Any, **__: Any) -> dict[str, Any]:
        names = code.removeprefix("%pip install --no-deps ").split(" ")
        assert len(names) <= MAX_AT_ONCE
        if self.missing in names:
            return {"content": {"status": "error", "evalue": f"no {self.missing}"}}
        self.installed += names
        return {"content": {"status": "ok"}}


async def test_more_packages_than_one_command_takes_come_back_in_several() -> None:
    packages = [Package(name=f"p{number}", version="1.0") for number in range(2 * MAX_AT_ONCE + 50)]
    kernel = Index(missing="p3==1.0")
    said = await restore(cast("Kernel", kernel), packages)
    assert kernel.installed == [f"p{number}==1.0" for number in range(MAX_AT_ONCE, 2 * MAX_AT_ONCE + 50)]
    assert said == f"{REPORT} packages that this session had are missing: no p3==1.0\n"
    whole = Index(missing="")
    assert await restore(cast("Kernel", whole), packages[:3]) is None
    assert whole.installed == ["p0==1.0", "p1==1.0", "p2==1.0"]


async def test_what_a_guest_says_of_a_failure_has_a_bound() -> None:
    kernel = Index(missing="p==" + "1" * 1_000_000)
    package = Package(name="p", version="1").model_copy(update={"version": "1" * 1_000_000})
    with capture_logs() as lines:
        said = await restore(cast("Kernel", kernel), [package])
    assert said is not None
    assert len(said) < 3000
    assert [len(line["reason"]) < 1000 for line in lines] == [True]


async def test_failures_of_several_commands_are_one_report() -> None:
    packages = [Package(name=f"p{number}", version="1.0") for number in range(2 * MAX_AT_ONCE)]
    kernel = Index(missing="")

    async def execute(*_: Any, **__: Any) -> dict[str, Any]:
        return {"content": {"status": "error", "evalue": "no index"}}

    kernel.execute = execute
    said = await restore(cast("Kernel", kernel), packages)
    assert said == f"{REPORT} packages that this session had are missing: no index\nno index\n"
