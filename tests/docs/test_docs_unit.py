"""What the documentation says is what there is."""

import base64
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernelmcp import errors
from kernelmcp.config.models import Config, Policy
from kernelmcp.config.settings import FIXED_AT_START
from kernelmcp.config.upstream_settings import UpstreamSettings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TOOLS = (ROOT / "docs" / "tools.md").read_text("utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text("utf-8")
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "examples" / "README.md",
]
CONTRACT_CODES = [
    "SESSION_NOT_FOUND",
    "EXECUTION_NOT_FOUND",
    "INVALID_ARGUMENT",
    "RESOURCE_LIMIT_EXCEEDED",
    "KERNEL_START_FAILED",
    "KERNEL_DIED",
    "PACKAGE_NOT_FOUND",
    "PERMISSION_DENIED",
    "RATE_LIMITED",
    "CONFIGURATION_ERROR",
    "INTERNAL_ERROR",
]


def test_every_setting_is_documented_and_no_other() -> None:
    sections = re.split(r"^##+ ", CONFIGURATION, flags=re.MULTILINE)
    documented = {
        section.splitlines()[0].strip("[]"): set(re.findall(r"^\| `(\w+)` \| [^|]* \|", section, re.MULTILINE))
        for section in sections
    }
    for name, field in Config.model_fields.items():
        assert documented[name] == set(field.annotation.model_fields), name
    assert documented["upstreams.servers.NAME"] == set(UpstreamSettings.model_fields)
    assert documented["policy.toml"] == set(Policy.model_fields)


def test_what_only_the_next_start_takes_over_is_documented_and_no_other() -> None:
    row = re.search(r"^\| (.*) \| at the next start; the log says so \|$", CONFIGURATION, re.MULTILINE)
    assert row
    documented: set[str] = set()
    for part in row[1].split("; "):
        keys, _, section = part.partition(" of ")
        prefix = section.strip("`[]").removeprefix("the ")
        documented |= {f"{prefix}.{key}".strip(".[]") for key in re.findall(r"`([^`]+)`", keys)}
    # A section that is fixed as a whole, `[name]`, and a setting, `section.key`, are written as in the code.
    assert documented == set(FIXED_AT_START)


def test_every_environment_variable_of_the_code_is_documented() -> None:
    files = [*(ROOT / "kernelmcp").rglob("*.py"), *(ROOT / "kernels" / "kernelmcp_kernel").glob("*.py")]
    used = {name for file in files for name in re.findall(r"\bKERNELMCP_[A-Z_]*[A-Z]\b", file.read_text("utf-8"))}
    assert {name for name in used if "__" not in name and f"`{name}`" not in CONFIGURATION} == set()


def test_the_deployment_files_name_settings_that_exist() -> None:
    files = [*(file for file in (ROOT / "deploy").rglob("*") if file.is_file()), ROOT / "docs" / "deployment.md"]
    named = {
        pair for file in files for pair in re.findall(r"\bKERNELMCP_([A-Z]+(?:_[A-Z]+)*)__([A-Z_]+)", file.read_text())
    }
    assert named
    for section, key in named:
        model = Policy if section == "POLICY" else Config.model_fields[section.lower()].annotation
        assert key.lower() in model.model_fields, (section, key)


def test_every_error_code_is_documented() -> None:
    ours = {kind.error_code for kind in vars(errors).values() if hasattr(kind, "error_code")}
    assert [code for code in sorted(ours | set(CONTRACT_CODES)) if f"`{code}`" not in TOOLS] == []


def test_every_severity_is_documented_with_its_categories() -> None:
    rows = re.findall(r"^\| `(warning|error|critical)` \| (.*?) \|", TOOLS, re.MULTILINE)
    documented = {category: severity for severity, cell in rows for category in re.findall(r"`(\w+)`", cell)}
    assert documented == errors.SEVERITIES
    used = {kind.category for kind in vars(errors).values() if hasattr(kind, "category")}
    assert used == set(errors.SEVERITIES)


@pytest.mark.parametrize("command", ["pip install . && kernelmcp demo", "pip install -e '.[test]' && pytest"])
def test_the_readme_has_the_two_commands(command: str) -> None:
    assert f"    {command}\n" in README


def test_the_readmes_picture_has_a_plot() -> None:
    drawn = ElementTree.parse(ROOT / "docs" / "session.svg").getroot()
    [image] = drawn.iter("{http://www.w3.org/2000/svg}image")
    assert base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert (page.parent / file).exists(), target
        assert file or anchor in anchors, target


def test_the_architecture_lists_every_folder_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for name, title in (("kernelmcp", "The server"), ("kernels/kernelmcp_kernel", "The kernel process")):
        table = text.partition(f"## {title}, from the top down")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", table, re.MULTILINE)
        listed = {one.rstrip("/") for row in rows for one in re.findall(r"`([^`]+)`", row)}
        entries = [path for path in (ROOT / name).iterdir() if path.name[0] != "_"]
        assert listed == {path.name for path in entries if path.is_dir() or path.suffix == ".py"}


def test_the_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    code = [ROOT / "kernelmcp", ROOT / "kernels" / "kernelmcp_kernel", ROOT]
    named = set(re.findall(r"\b(?:[a-z_]+/)+[a-z_]+\.(?:py|mjs|md|toml)\b", text))
    assert len(named) > 15
    assert [name for name in sorted(named) if not any((root / name).is_file() for root in code)] == []


def test_every_dependency_is_justified_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = project["dependencies"] + project["optional-dependencies"]["otel"]
    needed = {re.split(r"[\[<>=;! ]", one)[0] for one in named}
    table = (ROOT / "docs" / "design.md").read_text("utf-8").partition("## Dependencies")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z0-9-]+)", row)} - {"otel", "mcp"} == needed - {"mcp"}


def test_a_module_that_a_page_names_is_there() -> None:
    there = {
        path.name
        for folder in ("examples", "kernelmcp", "kernels", "tests", "scripts")
        for path in (ROOT / folder).rglob("*.py")
    }
    for page in PAGES:
        named = set(re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", page.read_text("utf-8")))
        assert named - there - {"test_message_spec.py", "test_kernel.py", "test_client.py", "setup.py"} == set(), page


def test_decisions_have_numbers_that_are_unique() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_survives_a_kernel_is_what_its_tests_say() -> None:
    from tests.kernel.test_javascript_state import SURVIVES as JAVASCRIPT_SURVIVES
    from tests.kernel.test_state import SURVIVES

    page = (ROOT / "docs" / "permanence.md").read_text("utf-8")
    table = page.partition("## What comes back")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == sorted([*SURVIVES, *JAVASCRIPT_SURVIVES])
