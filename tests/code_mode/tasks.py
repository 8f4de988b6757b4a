"""Tasks that a model has with five servers of 108 tools, done in both ways: the tools called one by one, and in cells.

The servers are a CRM of 60 tools, a fixture, and four that developers have: everything, filesystem, memory and git.

What is counted is what a model reads and writes, each text once: definitions of tools with our instructions, its own
calls, and the results as text. A token is taken for four characters. A model that calls tools one by one reads all
before again at each call, which is not counted. Both ways must come to the same answer.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import TextContent, Tool

from ..starting import over_stdio, python_command
from ..upstreams import real_servers

SERVERS = Path(__file__).parents[1] / "upstreams"
CHARS_PER_TOKEN = 4
# What code mode needs of our own tools.
OURS = ("execute_code", "get_execution")
DEADLINE = 180
# A tool of each server, there once it has answered.
READY = {
    "crm": "get_deal",
    "everything": "echo",
    "files": "list_directory",
    "git": "git_status",
    "memory": "read_graph",
}
SENTENCE = "The parties agreed that section {} needs another look before the renewal of the contract in spring. "
DOCUMENTS = {
    f"contract_{number}.md": f"# Contract {number}\n\n" + "".join(SENTENCE.format(part) for part in range(110))
    for number in range(1, 10)
}

Call = Callable[..., Awaitable[str]]


@dataclass
class Read:
    """What a model reads and writes, tokens."""

    definitions: int = 0
    written: int = 0
    results: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        return self.definitions + self.written + self.results


@dataclass(frozen=True)
class Task:
    """`answer` is what the last cell prints; `one_by_one` comes to the same with calls of tools."""

    what: str
    cells: tuple[str, ...]
    one_by_one: Callable[[Call], Awaitable[str]]


async def _deals_by_owner(call: Call) -> str:
    totals: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = json.loads(await call("crm", "list_deals", status="open", cursor=cursor))
        for deal in page["items"]:
            totals[deal["owner_id"]] += deal["amount"]
        if (cursor := page["next_cursor"]) is None:
            return "\n".join(f"{owner} {amount:.2f}" for owner, amount in totals.most_common())


async def _documents_to_tickets(call: Call) -> str:
    names = [line.split()[-1] for line in (await call("files", "list_directory", path=".")).splitlines()]
    for name in names:
        text = await call("files", "read_text_file", path=name)
        await call("crm", "create_ticket", name=name, notes=text)
    return f"{len(names)} tickets"


async def _one_field(call: Call) -> str:
    return str(json.loads(await call("crm", "get_deal", id="deal_42"))["status"])


async def _invoices_with_accounts(call: Call) -> str:
    owed: Counter[str] = Counter()
    for invoice in json.loads(await call("crm", "list_invoices", page_size=60))["items"]:
        account = json.loads(await call("crm", "get_account", id=invoice["id"].replace("invoice", "account")))
        owed[account["owner_id"]] += invoice["amount"]
    return "\n".join(f"{owner} {amount:.2f}" for owner, amount in owed.most_common(3))


@dataclass(frozen=True)
class Compared:
    classic: Read
    ours: Read
    shown: list[str]

    @property
    def saved(self) -> float:
        """Percent."""
        return 100 * (1 - self.ours.total / self.classic.total)

    @property
    def saved_without_definitions(self) -> float:
        ours, classic = (each.total - each.definitions for each in (self.ours, self.classic))
        return 100 * (1 - ours / classic)


Found = dict[str, Compared]


def cells(text: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in text.split("# ---\n"))


# As docs/code-mode.md shows it, which ruff formats.
A = """
import servers

servers.search("list deals")
# ---
from servers.crm import list_deals
list_deals?
# ---
from collections import Counter

totals, cursor = Counter(), None
while True:
    page = list_deals(status="open", cursor=cursor)
    for deal in page["items"]:
        totals[deal["owner_id"]] += deal["amount"]
    if (cursor := page["next_cursor"]) is None:
        break
for owner, amount in totals.most_common():
    print(owner, f"{amount:.2f}")
"""
B = """
import servers
print(servers.search('list and read files of a folder'))
print(servers.search('create ticket'))
# ---
from servers.files import list_directory, read_text_file
from servers.crm import create_ticket
print(list_directory(path='.'))
help(create_ticket)
# ---
names = [line.split()[-1] for line in list_directory(path='.')['content'].splitlines()]
for name in names:
    create_ticket(name=name, notes=read_text_file(path=name)['content'])
print(len(names), 'tickets')
"""
C = """
import servers
servers.search('get deal')
# ---
from servers.crm import get_deal
print(get_deal(id='deal_42')['status'])
"""
D = """
import servers
print(servers.search('list invoices'))
print(servers.search('get account'))
# ---
from servers.crm import get_account, list_invoices
invoices = list_invoices(page_size=60)['items']
invoices[0]
# ---
import asyncio
from collections import Counter
ids = [invoice['id'].replace('invoice', 'account') for invoice in invoices]
accounts = await asyncio.gather(*[get_account.aio(id=each) for each in ids])
owed = Counter()
for invoice, account in zip(invoices, accounts):
    owed[account['owner_id']] += invoice['amount']
for owner, amount in owed.most_common(3):
    print(owner, f'{amount:.2f}')
"""
TASKS = {
    "A": Task("sum of open deals by owner, 2 pages of 100", cells(A), _deals_by_owner),
    "B": Task("9 documents copied into tickets", cells(B), _documents_to_tickets),
    "C": Task("one field of one record", cells(C), _one_field),
    "D": Task("60 invoices joined with accounts, 61 calls", cells(D), _invoices_with_accounts),
}


def five_servers(folder: Path, regions: int = 0) -> dict[str, StdioServerParameters]:
    """Their files lie in a folder. The CRM has 48 more tools for each region."""
    documents, notes = folder / "documents", folder / "notes"
    documents.mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (documents / name).write_text(text, "utf-8")
    real = {
        "everything": real_servers.everything(),
        "files": real_servers.filesystem(documents),
        "git": real_servers.git(real_servers.a_repository(folder / "repository")),
        "memory": real_servers.memory(),
    }
    crm, *arguments = python_command(SERVERS / "crm_server.py", "--regions", str(regions))
    return {
        "crm": StdioServerParameters(command=crm, args=arguments),
        **{
            name: StdioServerParameters(command=command, args=arguments, env={"MEMORY_FILE_PATH": str(notes)})
            for name, (command, arguments) in real.items()
        },
    }


def settings_toml(upstreams: dict[str, StdioServerParameters]) -> str:
    tables = [
        f"[upstreams.servers.{name}]\ncommand = {json.dumps(each.command)}\nargs = {json.dumps(each.args)}\n"
        + "".join(f"env.{key} = {json.dumps(value)}\n" for key, value in (each.env or {}).items())
        for name, each in upstreams.items()
    ]
    return "\n".join(["[upstreams]\ndefault = 'allow'\n", *tables])


def tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def definitions(tools: Iterable[Tool]) -> int:
    """What a client passes on of them to its model."""
    return sum(
        tokens(json.dumps({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}))
        for tool in tools
    )


def _text(content: Iterable[Any]) -> str:
    """Links beside a text are read, too."""
    return "\n".join(
        block.text if isinstance(block, TextContent) else block.model_dump_json(by_alias=True, exclude_none=True)
        for block in content
    )


async def compare(names: Iterable[str], env: dict[str, str], upstreams: dict[str, StdioServerParameters]) -> Found:
    """Tasks in both ways, which must come to the same answer."""
    found: Found = {}
    async with a_model(env, upstreams) as client, AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(Client(each)) for name, each in upstreams.items()}
        defined = sum([definitions((await each.list_tools()).tools) for each in clients.values()])
        for name in names:
            classic, expected = await one_by_one(TASKS[name], clients, defined)
            ours, shown = await in_cells(TASKS[name], client, name)
            assert shown[-1].splitlines()[: expected.count("\n") + 1] == expected.splitlines(), shown
            found[name] = Compared(classic, ours, shown)
    return found


async def one_by_one(task: Task, clients: dict[str, Client], defined: int) -> tuple[Read, str]:
    """With clients of the servers themselves, whose definitions are so many tokens."""
    read = Read(definitions=defined)

    async def call(server: str, tool: str, **arguments: Any) -> str:
        result = await clients[server].call_tool(tool, arguments)
        assert not result.is_error, result
        text = _text(result.content)
        read.calls += 1
        read.written += tokens(json.dumps({"name": tool, "arguments": arguments}))
        read.results += tokens(text)
        return text

    return read, await task.one_by_one(call)


@asynccontextmanager
async def a_model(env: dict[str, str], upstreams: dict[str, StdioServerParameters]) -> AsyncIterator[Client]:
    """A client of a kernelmcp whose upstreams are ready; `env` names its settings file."""
    await anyio.Path(env["KERNELMCP_CONFIG_FILE"]).write_text(settings_toml(upstreams), "utf-8")
    async with Client(over_stdio(env=env)) as client:
        code = "\n".join(f"from servers.{name} import {READY[name]}" for name in upstreams)
        with anyio.fail_after(DEADLINE):
            while (await client.call_tool("execute_code", {"code": code, "session_id": "ready"})).is_error:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        yield client


async def in_cells(task: Task, client: Client, session_id: str) -> tuple[Read, list[str]]:
    """With the client of a kernelmcp that has the servers: also what the model was shown of each cell."""
    ours = [tool for tool in (await client.list_tools()).tools if tool.name in OURS]
    read = Read(definitions=definitions(ours) + tokens(client.instructions or ""))
    shown: list[str] = []
    for cell in task.cells:
        arguments = {"code": cell, "session_id": session_id}
        result = await client.call_tool("execute_code", arguments)
        assert not result.is_error, result
        shown.append(_text(result.content))
        read.calls += 1
        read.written += tokens(json.dumps({"name": "execute_code", "arguments": arguments}))
        read.results += tokens(shown[-1])
    return read, shown


def table(found: Found) -> str:
    """For docs/benchmarks.md."""
    head = "| task | one by one: definitions + written + results | in cells | saved | without definitions |"
    lines = [head, "|---|---|---|---|---|"]
    for name, each in found.items():
        classic = f"{each.classic.definitions:,} + {each.classic.written:,} + {each.classic.results:,}"
        lines.append(
            f"| {name}: {TASKS[name].what} | {classic} = {each.classic.total:,} | {each.ours.total:,} in "
            f"{each.ours.calls} cells | {each.saved:.1f} % | {each.saved_without_definitions:.1f} % |"
        )
    return "\n".join(lines)
