"""Compares kernelmcp/version.py with the other files that name the version. With VERSION, sets it in all."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "kernelmcp" / "version.py"
CLIENTS = ROOT / "deploy" / "clients"
OTHERS = [
    CLIENTS / "server.json",
    CLIENTS / "mcpb" / "manifest.json",
    CLIENTS / "mcpb" / "pyproject.toml",
    CLIENTS / "plugin" / "plugin.json",
    CLIENTS / "plugin" / "mcp.json",
    CLIENTS / "plugin" / ".claude-plugin" / "plugin.json",
]
ASSIGNED = re.compile(r'(?<=__version__ = ")[^"]+')
NAMED = re.compile(
    r'(?<="version": ")[^"]+|(?<=^version = ")[^"]+|(?<="kernelmcp==)[^";]+|(?<="kernelmcp-)\d[^"-]*', re.M
)


def main() -> int:
    if len(sys.argv) > 1:
        for file, pattern in ((SOURCE, ASSIGNED), *((other, NAMED) for other in OTHERS)):
            file.write_text(pattern.sub(sys.argv[1], file.read_text("utf-8")), "utf-8")
    [version] = ASSIGNED.findall(SOURCE.read_text("utf-8"))
    wrong = [str(file.relative_to(ROOT)) for file in OTHERS if set(NAMED.findall(file.read_text("utf-8"))) != {version}]
    if wrong:
        sys.stderr.write(f"scripts/version.py: not {version}: {', '.join(wrong)}\n")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
