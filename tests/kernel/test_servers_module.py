"""The module `servers` in a guest: importing, searching and calling tools, and skills, of a client that offers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.upstreams.catalogue import Catalogue, Tool
from kernelmcp.upstreams.stubs import publish, render

from .driver import Kernel
from .offerer import Message, Offerer, failed, offering, structured

DEAL = {"type": "object", "title": "Deal", "properties": {"id": {"type": "string"}, "amount": {"type": "number"}}}
SKILL = '"""Text made loud."""\n\ndef shout(text):\n    return text.upper()\n'
OWN_SKILLS = {
    "sums": '"""Totals of deals."""\ndef total(deals):\n    return sum(d["amount"] for d in deals)\n'
    'def test_total():\n    assert total([{"amount": 2}]) == 2\n'
    'async def test_waits():\n    import asyncio\n    await asyncio.sleep(0)\n    print("not shown")\n',
    "broken": '"""Does not work."""\ndef test_it():\n    raise ValueError("too\\nbad")\n',
    "bare": "x = 1\n",
    "invalid": "def f(:\n",
}


def tool(name: str, description: str = "", arguments: Any = None, required: Any = (), output: Any = None) -> Tool:
    schema = {"type": "object", "properties": arguments or {}, "required": list(required)}
    return Tool(name, None, description, schema, output, None, None, None, "")


FORGET = "import sys\nfor name in [n for n in sys.modules if n.split('.')[0] == 'servers']:\n    del sys.modules[name]"
TEXT = {"type": "string"}
CRM = Catalogue(
    "crm",
    "Acme",
    "1.0",
    "Customers.",
    (
        tool("getDeal", 'Gets one deal.\n\n"""\nimport os', {"id": {**TEXT, "description": "Its id."}}, ["id"], DEAL),
        tool("list_deals", "List deals, newest first.", {"limit": {"type": "integer", "default": 20}, "$filter": TEXT}),
        tool("delete_deal", "Delete a deal for good.", {"id": TEXT}, ["id"]),
        tool("whole", "Takes what comes.", {"a": True}),
    ),
)
WIKI = Catalogue("my-wiki", "", "", "", (tool("search pages", "Finds pages by words.", {"query": TEXT}, ["query"]),))


def echo(arguments: dict[str, Any]) -> Message:
    return structured(arguments)


TOOLS = {
    "crm.getDeal": echo,
    "crm.list_deals": echo,
    "crm.delete_deal": echo,
    "crm.whole": echo,
    "my-wiki.search pages": echo,
}


def published(folder: Path, *catalogues: Catalogue, **skills: str) -> Path:
    return publish(render(catalogues, lambda server, tool: True, skills), folder)


@pytest.fixture
def offerer(kernel: Kernel, tmp_path: Path) -> Iterator[Offerer]:
    with offering(kernel, published(tmp_path, CRM, WIKI, loud=SKILL), dict(TOOLS)) as running:
        kernel.run("%reset -f")
        yield running


def value(kernel: Kernel, code: str) -> str | None:
    ran = kernel.run(code)
    assert ran.status == "ok", ran.error
    return ran.result


@pytest.mark.parametrize(
    "code",
    [
        "from servers.crm import getDeal\ngetDeal('a')",
        "from servers.crm.getDeal import getDeal\ngetDeal(id='a')",
        "import servers.crm.getDeal\nservers.crm.getDeal(id='a')",
        "import servers.crm.getDeal as g\ng('a')",
        "import servers\nservers.crm.getDeal('a')",
        "from servers import crm\ncrm.getDeal('a')",
        "from servers.crm import *\ngetDeal('a')",
        "import importlib\nimportlib.import_module('servers.crm.getDeal')('a')",
        "from servers.crm import getDeal\nawait getDeal.aio('a')",
        "import asyncio, servers\n(await asyncio.gather(*map(servers.crm.getDeal.aio, 'ab')))[0]",
        "callMCPTool('crm.getDeal', {'id': 'a'})",
        "callMCPTool('getDeal', {'id': 'a'})",
        "callMCPTool('crm.get_deal', {'id': 'a'})",
        "await callMCPTool('crm.getDeal', {'id': 'a'})",
        "callMCPTool('getDeal', id='a')",
        "import asyncio\n(await asyncio.gather(*(callMCPTool('getDeal', {'id': i}) for i in 'ab')))[0]",
    ],
)
def test_every_way_to_a_tool_calls_it(kernel: Kernel, offerer: Offerer, code: str) -> None:
    assert value(kernel, code) == "{'id': 'a'}"


def test_the_server_gets_its_own_names(kernel: Kernel, offerer: Offerer) -> None:
    calls = "list_deals(limit=3, filter='x'), list_deals(**{'$filter': 'y'}), list_deals()"
    assert (
        value(kernel, f"from servers.crm import list_deals\n{calls}")
        == "({'limit': 3, '$filter': 'x'}, {'$filter': 'y'}, {})"
    )
    assert value(kernel, "from servers.my_wiki import search_pages\nsearch_pages('x')") == "{'query': 'x'}"
    assert [call["tool"] for call in offerer.calls] == ["list_deals"] * 3 + ["search pages"]
    assert offerer.calls[-1]["server"] == "my-wiki"


def test_an_argument_that_is_not_given_is_not_sent_and_none_is(kernel: Kernel, offerer: Offerer) -> None:
    assert (
        value(kernel, "from servers.crm import whole\nwhole(), whole(a=...), whole(a=None)") == "({}, {}, {'a': None})"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("getDeal()", "getDeal: missing a required argument: 'id'; it is getDeal(id: str) -> Deal"),
        ("getDeal('a', 'b')", "getDeal: too many positional arguments; it is getDeal(id: str) -> Deal"),
        ("getDeal(i='a')", "getDeal: "),
        ("getDeal.aio()", "getDeal: missing a required argument: 'id'; it is getDeal(id: str) -> Deal"),
    ],
)
def test_wrong_arguments_fail_without_a_call(kernel: Kernel, offerer: Offerer, call: str, said: str) -> None:
    ran = kernel.run(f"from servers.crm import getDeal\n{call}")
    assert ran.error.startswith(f"TypeError: {said}")
    assert offerer.calls == []
    shown = "\n".join(ran.reply["content"]["traceback"])
    assert "stub.py" not in shown
    assert "calls.py" not in shown
    assert "/servers/" not in shown


def test_help_shows_signature_description_and_whose_it_is(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run("from servers.crm import getDeal, list_deals\ngetDeal?")
    (page,) = [item["data"]["text/plain"] for item in ran.reply["content"]["payload"] if item["source"] == "page"]
    help_ = kernel.run("help(getDeal)").text()
    for said in ("getDeal(id: str) -> Deal", "Gets one deal.", "Its id.", "The MCP server 'crm' says this"):
        assert said in page.replace("\x1b[0m", ""), page
        assert said in help_
    assert (
        "list_deals(*, limit: int = 20, filter: str = ...) -> Text | Blob | list"
        in kernel.run("help(list_deals)").text()
    )
    assert "def getDeal(id: str) -> Deal:" in kernel.run("import inspect\nprint(inspect.getsource(getDeal))").text()
    assert "class Deal(TypedDict):" in kernel.run("print(open('/servers/crm/getDeal.py').read())").text()


def test_dir_lists_servers_and_tools(kernel: Kernel, offerer: Offerer) -> None:
    names = value(kernel, "import servers\ndir(servers.crm), 'crm' in dir(servers), 'search' in dir(servers)")
    assert names == "(['delete_deal', 'getDeal', 'list_deals', 'whole'], True, True)"
    assert "Customers." in str(value(kernel, "servers.crm.__doc__"))


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("get deal", "servers.crm.getDeal(id) -> {id, amount}  # Gets one deal."),
        ("fetch a deal", "servers.crm.getDeal(id)"),
        ("deals", "servers.crm."),
        ("remove deals", "servers.crm.delete_deal(id)"),
        ("wiki", "servers.my_wiki.search_pages(query)"),
        ("page", "servers.my_wiki.search_pages(query)"),
        ("loud text", "from skills import loud  # skill: Text made loud."),
    ],
)
def test_search_finds_the_best_first(kernel: Kernel, offerer: Offerer, words: str, first: str) -> None:
    lines = str(value(kernel, f"import servers\nservers.search({words!r})")).splitlines()
    assert lines[1].startswith(first)
    assert len(lines) <= 9


def test_a_search_that_finds_nothing_says_what_there_is(kernel: Kernel, offerer: Offerer) -> None:
    found = str(value(kernel, "import servers\nservers.search('zebra')"))
    assert found.startswith("nothing fits 'zebra'; there are:\nservers.crm: 4 tools")
    assert "skills: loud" in found


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import servers.crm.get_deals", "servers.crm has no tool 'get_deals': perhaps servers.crm.getDeal"),
        ("from servers.crm import get_deals", "servers.crm has no tool 'get_deals': perhaps servers.crm.getDeal"),
        ("import servers.github", "there is no MCP server 'github' among those that are offered: crm, my_wiki"),
        ("import servers\nservers.github", "there is no MCP server 'github'"),
        ("callMCPTool('crm.get_deals', {})", "there is no tool 'crm.get_deals': perhaps crm.getDeal"),
    ],
)
def test_a_name_that_is_not_there_leads_to_one_that_is(kernel: Kernel, offerer: Offerer, code: str, said: str) -> None:
    assert said in kernel.run(code).error


def test_a_denied_tool_is_called_denied(kernel: Kernel, tmp_path: Path) -> None:
    files = render([CRM], lambda server, tool: tool.name != "delete_deal")
    with offering(kernel, publish(files, tmp_path), {"crm.delete_deal": lambda _: failed("ToolDenied", "not this")}):
        assert kernel.run("callMCPTool('crm.delete_deal')").error == "ToolDenied: not this"
        denied = "servers.crm.delete_deal is denied by the user's settings: do it another way, or tell the user"
        assert kernel.run("import servers\nservers.crm.delete_deal(id='1')").error == f"AttributeError: {denied}"
        assert denied in kernel.run("from servers.crm import delete_deal").error
        assert denied in kernel.run("import servers.crm.delete_deal").error
        assert value(kernel, "'delete_deal' in dir(servers.crm)") == "False"
        assert "delete_deal" not in str(value(kernel, "servers.search('delete deal')"))


def test_a_server_without_tools_says_why(kernel: Kernel, tmp_path: Path) -> None:
    about = "late is not available; it is still connecting"
    with offering(kernel, published(tmp_path, Catalogue("late", "", "", about, ())), {}):
        said = kernel.run("from servers.late import anything").error
    assert f"servers.late has no tools now: {about}" in said


def test_servers_that_are_being_connected_are_told_in_one_line(kernel: Kernel, tmp_path: Path) -> None:
    late = [Catalogue(f"late-{number}", "", "", "it is still connecting", ()) for number in range(64)]
    files = render([CRM, *late], lambda server, tool: True, None, [one.server for one in late])
    note = (
        "64 of 65 MCP servers are still being connected (late_0, late_1, late_10, late_11, late_12, ...): "
        "look again in a few seconds"
    )
    with offering(kernel, publish(files, tmp_path), {}):
        for words, count in (("deal", 5), ("zebra", 3), ("", 2)):
            lines = str(value(kernel, f"import servers\nservers.search({words!r})")).splitlines()
            assert (len(lines), lines[-1]) == (count, note)
        assert note in kernel.run("callMCPTool('anything')").error
        said = "ServerUnavailable: late_7 has no tools now: it is still connecting"
        assert said in kernel.run("callMCPTool('late-7.anything')").error


def test_while_all_servers_are_being_connected_nothing_is_said_to_fit_or_not(kernel: Kernel, tmp_path: Path) -> None:
    late = Catalogue("late", "", "", "it is still connecting", ())
    note = "1 of 1 MCP servers is still being connected (late): look again in a few seconds"
    only = render([late], lambda server, tool: True, None, ["late"])
    with offering(kernel, publish(only, tmp_path / "only"), {}):
        assert str(value(kernel, "import servers\nservers.search('zebra')")) == note
    both = render([CRM, late], lambda server, tool: True, None, ["late"])
    with offering(kernel, publish(both, tmp_path / "both"), {}):
        found = str(value(kernel, "servers.search('zebra')"))
    assert found.startswith("nothing fits 'zebra' so far; there are:\nservers.crm: 4 tools")


def test_a_name_that_two_servers_have_must_be_said_in_full(kernel: Kernel, tmp_path: Path) -> None:
    two = [Catalogue(name, "", "", "", (tool("x"),)) for name in ("a", "b")]
    with offering(kernel, published(tmp_path, *two), {"a.x": echo, "b.x": echo}) as offerer:
        assert "several servers have a tool 'x': a.x, b.x" in kernel.run("callMCPTool('x')").error
        assert value(kernel, "callMCPTool('b.x')") == "{}"
        assert [call["server"] for call in offerer.calls] == ["b"]


def test_a_users_variable_comes_first_and_none_is_made(kernel: Kernel, offerer: Offerer) -> None:
    assert value(kernel, "'callMCPTool' in dir() or 'servers' in dir()") == "False"
    assert value(kernel, "callMCPTool = 3\ncallMCPTool") == "3"
    assert "callMCPTool" not in kernel.run("%reset -f\n%who").text()


def test_an_offer_that_changes_in_the_middle_of_a_cell(kernel: Kernel, offerer: Offerer, tmp_path: Path) -> None:
    changed = Catalogue("crm", "", "", "", (tool("getDeal", "Another.", {"key": TEXT}, ["key"]), tool("added")))
    other = published(tmp_path, changed)

    def swap(arguments: dict[str, Any]) -> Message:
        offerer.send(offerer.session.msg("tools_offer_request", {
            "digest": "y", "folder": str(other), "servers": ["crm"], "concurrent_calls": 24,
        }))  # fmt: skip
        return structured("swapped")

    offerer.tools |= {"crm.whole": swap, "crm.added": echo}
    code = """
import servers, time
from servers.crm import getDeal as before, whole
from servers.crm.getDeal import getDeal
whole()
while "added" not in dir(servers.crm):
    time.sleep(0.05)
from servers.crm.getDeal import getDeal as after
from servers.crm import getDeal as too, added
import servers.crm.getDeal
added(), before("a"), after("b"), too("c"), servers.crm.getDeal("d"), "my_wiki" in dir(servers)
"""
    assert value(kernel, code) == "({}, {'id': 'a'}, {'key': 'b'}, {'key': 'c'}, {'key': 'd'}, False)"
    assert value(kernel, "getDeal('old')") == "{'id': 'old'}"


def test_without_an_offer_an_import_says_so(kernel: Kernel) -> None:
    for code in ("import servers", "from servers.crm import getDeal", "import servers.crm"):
        kernel.run(FORGET)
        assert kernel.run(code).error == "ModuleNotFoundError: no MCP servers are offered to this kernel"
    assert "no MCP servers are offered to this kernel" in kernel.run("callMCPTool('x')").error
    assert value(kernel, "import importlib.util\nimportlib.util.find_spec('servers')") is None


def test_without_an_offer_a_users_own_module_is_found(kernel: Kernel) -> None:
    code = """
import os
os.makedirs('/workspace/servers', exist_ok=True)
open('/workspace/servers/__init__.py', 'w').write('mine = 1')
open('/workspace/servers/crm.py', 'w').write('mine = 2')
import servers.crm
found = servers.mine, servers.crm.mine
import shutil
shutil.rmtree('/workspace/servers')
found
"""
    kernel.run(FORGET)
    assert value(kernel, code) == "(1, 2)"
    kernel.run(FORGET)


def test_an_offer_that_is_withdrawn(kernel: Kernel, offerer: Offerer) -> None:
    assert value(kernel, "import servers\nfrom servers.crm import getDeal\ngetDeal('a')") == "{'id': 'a'}"
    assert offerer.offer(servers=[]) == {"status": "ok"}
    assert "no MCP servers are offered" in kernel.run("servers.crm").error
    assert "no MCP servers are offered" in kernel.run("getDeal('a')").error


def test_the_files_cannot_be_changed(kernel: Kernel, offerer: Offerer) -> None:
    for code in (
        "open('/servers/crm/getDeal.py', 'w')",
        "open('/servers/skills/loud.py', 'a')",
        "open('/servers/new.py', 'w')",
        "import os; os.remove('/servers/skills/loud.py')",
        "import os; os.rename('/servers/skills', '/servers/other')",
        "import os; os.chmod('/servers/skills/loud.py', 0o777); open('/servers/skills/loud.py', 'w')",
    ):
        assert kernel.run(code).status == "error", code
    assert value(kernel, "open('/servers/skills/loud.py').read()") == repr(SKILL)


def test_without_skills_an_import_says_what_one_is(kernel: Kernel) -> None:
    assert kernel.run("import skills").error.startswith("ModuleNotFoundError: there are no skills: one is /workspace/")


# -- skills -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_skills(kernel: Kernel, offerer: Offerer) -> Iterator[None]:
    kernel.run(
        "import os, shutil, sys\nos.makedirs('/workspace/skills', exist_ok=True)\n"
        f"for name, text in {OWN_SKILLS!r}.items():\n    open(f'/workspace/skills/{{name}}.py', 'w').write(text)"
    )
    yield
    kernel.run(
        "import shutil, sys\nshutil.rmtree('/workspace/skills')\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'skills']:\n    del sys.modules[name]"
    )


@pytest.mark.usefixtures("own_skills")
def test_skills_are_imported_from_both_places(kernel: Kernel) -> None:
    assert value(kernel, "from skills import sums\nsums.total([{'amount': 3}])") == "3"
    assert (
        value(kernel, "from skills.loud import shout\nimport skills.sums\nshout('a'), skills.sums.total([])")
        == "('A', 0)"
    )
    assert kernel.run("from skills import nothing").error.startswith("ImportError")
    assert "skills.sums" not in str(value(kernel, "import servers\nservers.search('zebra')"))
    assert value(kernel, "import servers\nservers.skills.sums.total([])") == "0"


@pytest.mark.usefixtures("own_skills")
def test_a_skill_that_is_promoted_after_the_package_was_imported(
    kernel: Kernel, offerer: Offerer, tmp_path: Path
) -> None:
    def offer(folder: Path) -> Message:
        offerer.send(offerer.session.msg("tools_offer_request", {
            "digest": folder.name, "folder": str(folder), "servers": ["crm"], "concurrent_calls": 24,
        }))  # fmt: skip
        return structured("offered")

    without, more = published(tmp_path, CRM), published(tmp_path, CRM, loud=SKILL, later=SKILL)
    offerer.tools |= {
        "crm.whole": lambda arguments: offer(without),
        "crm.delete_deal": lambda arguments: offer(more),
    }
    code = """
import os, time, sys
from servers.crm import whole, delete_deal
whole()
while os.path.exists("/servers/skills"):
    time.sleep(0.05)
from skills import sums
delete_deal("x")
while not os.path.exists("/servers/skills/loud.py"):
    time.sleep(0.05)
from skills import later, loud
later.shout("a"), loud.shout("b"), sums.total([])
"""
    assert value(kernel, code) == "('A', 'B', 0)"


@pytest.mark.usefixtures("own_skills")
def test_a_sessions_own_skill_comes_before_a_promoted_one(kernel: Kernel) -> None:
    code = "open('/workspace/skills/loud.py', 'w').write('\"\"\"Mine.\"\"\"\\nx = 1')\nfrom skills import loud\nloud.x"
    assert value(kernel, code) == "1"


@pytest.mark.usefixtures("own_skills")
def test_skills_are_listed_by_search(kernel: Kernel) -> None:
    found = str(value(kernel, "import servers\nservers.search('total of deals')"))
    assert "from skills import sums  # skill: Totals of deals." in found
    assert "skills: bare, broken, invalid, loud, sums" in str(value(kernel, "servers.search()"))


@pytest.mark.usefixtures("own_skills")
def test_test_skills_runs_each_test_and_says_what_failed(kernel: Kernel) -> None:
    ran = kernel.run("import servers\nservers.test_skills()")
    assert str(ran.result).splitlines() == [
        "skills.bare: no docstring, no test_* functions",
        "skills.broken: 0 passed, 1 failed",
        "  test_it: ValueError: too bad (broken.py:3)",
        "skills.invalid: cannot be imported: SyntaxError: invalid syntax (invalid.py, line 1)",
        "skills.loud: no test_* functions",
        "skills.sums: 2 passed",
    ]
    assert ran.text() == ""
    assert "there is no skill 'x'" in kernel.run("servers.test_skills('x')").error


@pytest.mark.usefixtures("own_skills")
def test_a_skill_is_tested_as_its_file_is_now(kernel: Kernel) -> None:
    kernel.run("import servers\nservers.test_skills('broken')")
    kernel.run("open('/workspace/skills/broken.py', 'w').write('\"\"\"Works.\"\"\"\\ndef test_it():\\n    pass\\n')")
    assert value(kernel, "servers.test_skills('broken')") == "skills.broken: 1 passed"


def test_a_users_own_module_called_skills_is_left_alone(kernel: Kernel, offerer: Offerer) -> None:
    code = """
import sys
open('/workspace/skills.py', 'w').write('x = 5')
import skills
found = skills.x
import os
os.remove('/workspace/skills.py')
del sys.modules['skills']
found
"""
    assert value(kernel, code) == "5"
