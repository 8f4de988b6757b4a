"""What a fresh kernel is asked to install again."""

from typing import Any, cast

import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import REPORT
from kernelmcp.sessions import installed_packages
from kernelmcp.sessions.installed_packages import MAX_AT_ONCE, MAX_COMMANDS, Package, restore

pytestmark = pytest.mark.anyio

MISSING = f"{REPORT} packages that this session had are missing: "


class Index:
    """A kernel that installs all but some packages, and others only where they are requested with another, or after."""

    def __init__(self, *unavailable: str, needs: dict[str, str] | None = None) -> None:
        self.unavailable = set(unavailable)
        self.needs = needs or {}
        self.installed: list[str] = []
        self.commands = 0
        self.interrupts = 0

    async def execute(self, code: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.commands += 1
        names = code.removeprefix("%pip install --no-deps ").split(" ")
        assert len(names) <= MAX_AT_ONCE
        alone = {name for name in names if self.needs.get(name, name) not in {*names, *self.installed}}
        for name in names:
            if name in self.unavailable | alone:
                return {"content": {"status": "error", "ename": "PackageNotFound", "evalue": f"no {name}"}}
        self.installed += names
        return {"content": {"status": "ok"}}

    def interrupt(self) -> None:
        self.interrupts += 1


def numbered(count: int) -> list[Package]:
    return [Package(name=f"p{number}", version="1.0") for number in range(count)]


async def restored(kernel: Index, packages: list[Package]) -> str | None:
    said = await restore(cast("Kernel", kernel), packages)
    assert said is None or said.startswith(MISSING)
    return said and said.removeprefix(MISSING)


async def test_more_packages_than_one_command_takes_come_back_in_several() -> None:
    kernel = Index()
    assert await restored(kernel, numbered(2 * MAX_AT_ONCE + 50)) is None
    assert kernel.installed == [f"p{number}==1.0" for number in range(2 * MAX_AT_ONCE + 50)]
    assert kernel.commands == 3


async def test_packages_that_are_unavailable_leave_the_others() -> None:
    kernel = Index("p3==1.0", "p7==1.0")
    assert await restored(kernel, numbered(MAX_AT_ONCE + 50)) == "p3==1.0, p7==1.0\nno p3==1.0\nno p7==1.0\n"
    expected = {f"p{number}==1.0" for number in range(MAX_AT_ONCE + 50)} - {"p3==1.0", "p7==1.0"}
    assert sorted(kernel.installed) == sorted(expected)
    only = Index("p0==1.0")
    assert await restored(only, numbered(1)) == "p0==1.0\nno p0==1.0\n"
    assert only.commands == 1


async def test_a_package_that_is_permitted_only_with_another_comes_back_after_it() -> None:
    kernel = Index("p1==1.0", needs={"p0==1.0": "p3==1.0"})
    assert await restored(kernel, numbered(4)) == "p1==1.0\nno p1==1.0\n"
    assert sorted(kernel.installed) == ["p0==1.0", "p2==1.0", "p3==1.0"]


async def test_where_nothing_can_be_had_a_limited_number_of_commands_says_so() -> None:
    kernel = Index(*(f"p{number}==1.0" for number in range(2 * MAX_AT_ONCE)))
    said = await restored(kernel, numbered(2 * MAX_AT_ONCE))
    assert said is not None
    assert said.startswith("p0==1.0, p1==1.0, ")
    assert kernel.commands == MAX_COMMANDS


@pytest.mark.parametrize("ename", ["KeyboardInterrupt", "PackagesDisabled"])
async def test_what_befalls_each_of_them_ends_it_at_once(ename: str) -> None:
    class Failing(Index):
        async def execute(self, code: str, *_: Any, **__: Any) -> dict[str, Any]:
            await super().execute(code)
            return {"content": {"status": "error", "ename": ename, "evalue": "not now"}}

    kernel = Failing()
    assert await restored(kernel, numbered(2)) == "p0==1.0, p1==1.0\nnot now\n"
    assert kernel.commands == 1


async def test_without_an_index_those_in_the_cache_come_back() -> None:
    class Offline(Index):
        async def execute(self, code: str, *_: Any, **__: Any) -> dict[str, Any]:
            reply = await super().execute(code)
            return {"content": {**reply["content"], "ename": "PackageUnreachable"}}

    kernel = Offline("p2==1.0")
    said = await restored(kernel, numbered(5))
    assert said is not None
    assert said.startswith("p2==1.0\n")
    assert sorted(kernel.installed) == ["p0==1.0", "p1==1.0", "p3==1.0", "p4==1.0"]


async def test_what_has_not_come_back_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Index):
        async def execute(self, code: str, *_: Any, **__: Any) -> dict[str, Any]:
            await (anyio.sleep_forever() if self.commands else anyio.lowlevel.checkpoint())
            return await super().execute(code)

    monkeypatch.setattr(installed_packages, "RESTORE_SECONDS", 0.1)
    kernel = Slow("p1==1.0")
    assert await restored(kernel, numbered(2)) == "p0==1.0, p1==1.0\nit took longer than 0 s\nno p1==1.0\n"
    assert kernel.interrupts == 1


async def test_what_a_guest_says_of_a_failure_has_a_bound() -> None:
    kernel = Index("p==" + "1" * 1_000_000)
    package = Package(name="p", version="1").model_copy(update={"version": "1" * 1_000_000})
    with capture_logs() as lines:
        said = await restore(cast("Kernel", kernel), [package])
    assert said is not None
    assert len(said) < 3000
    assert [len(line["reason"]) < 1000 for line in lines] == [True]
