"""deploy/clients: the formats of others, the version, and what the texts for models name."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
import yaml

from kernelmcp.config.tool_names import TOOL_NAMES
from kernelmcp.version import __version__

from .conftest import ROOT

CLIENTS, SCHEMAS = ROOT / "deploy" / "clients", Path(__file__).parent / "schemas"
PLUGIN = CLIENTS / "plugin"
FILES = sorted(file for file in CLIENTS.rglob("*.*") if file.is_file())
MARKETPLACES = [ROOT / ".claude-plugin" / "marketplace.json", ROOT / ".cursor-plugin" / "marketplace.json"]


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        (CLIENTS / "server.json", "registry-server.json"),
        (PLUGIN / "plugin.json", "agent-plugin.json"),
        (PLUGIN / "mcp.json", "agent-plugin-mcp.json"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_file_is_valid(file: Path, schema: str) -> None:
    found = read(file)
    jsonschema.validate(found, read(SCHEMAS / schema))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "description": 1, "mcpServers": 1}, read(SCHEMAS / schema))


def versions(found: Any) -> Iterator[str]:
    """Each version of ours in a document: of a key, and of a requirement or a wheel."""
    if isinstance(found, dict):
        yield from (value for key, value in found.items() if key == "version")
        found = list(found.values())
    for each in found if isinstance(found, list) else ():
        yield from versions(each)
    if isinstance(found, str):
        yield from re.findall(r"kernelmcp(?:==|-)(\d[\w.]*)", found)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CLIENTS)))
def test_a_version_is_ours(file: Path) -> None:
    text = file.read_text("utf-8")
    found = set(versions(json.loads(text) if file.suffix == ".json" else text))
    assert found <= {__version__}
    assert bool(found) == (file.suffix == ".json" or file.name == "pyproject.toml")


@pytest.mark.parametrize("file", MARKETPLACES, ids=lambda file: file.parent.name)
def test_a_marketplace_leads_to_the_plugin(file: Path) -> None:
    [entry] = read(file)["plugins"]
    assert (ROOT / entry["source"]).resolve() == PLUGIN
    manifests = [read(PLUGIN / "plugin.json"), read(PLUGIN / ".claude-plugin" / "plugin.json")]
    own = {"$schema", "mcpServers"}  # what only one of the two formats has
    assert manifests[0].keys() ^ manifests[1].keys() == own
    for key in manifests[0].keys() - own:
        assert manifests[0][key] == manifests[1][key]
    assert all(entry[key] == manifests[0][key] for key in ("name", "description"))


def test_the_skill_has_only_the_formats_fields() -> None:
    [file] = PLUGIN.glob("skills/*/SKILL.md")
    fields = yaml.safe_load(file.read_text("utf-8").split("---\n")[1])
    assert fields.keys() == {"name", "description", "license"}
    assert fields["name"] == file.parent.name
    assert len(fields["description"]) <= 1024


def test_texts_for_models_name_tools_that_exist() -> None:
    named = {
        name for file in PLUGIN.rglob("*.md") for name in re.findall(r"`([a-z]+_[a-z_]+)`", file.read_text("utf-8"))
    }
    arguments = {"session_id", "execution_id", "from_session", "from_notebook"}
    assert len(named & set(TOOL_NAMES)) > 8
    assert named - set(TOOL_NAMES) - arguments == set()


def test_the_links_of_the_docs_start_what_the_plugin_starts() -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    [cursor] = re.findall(r"^cursor://\S+[?&]name=kernelmcp&config=(\S+)$", page, re.M)
    [vscode] = re.findall(r"^vscode:mcp/install\?(\S+)$", page, re.M)
    entry = read(PLUGIN / "mcp.json")["mcpServers"]["kernelmcp"]
    wanted = {"command": entry["command"], "args": [part.partition("==")[0] for part in entry["args"]]}
    assert json.loads(base64.b64decode(cursor)) == wanted
    assert json.loads(unquote(vscode)) == {"name": "kernelmcp", **wanted}
