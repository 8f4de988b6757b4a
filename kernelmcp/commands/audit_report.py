"""`kernelmcp audit`: reports the calls of other servers' tools from code mode's audit."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from kernelmcp.code_mode.audit import audit_file, read_lines
from kernelmcp.commands.terminal import plain
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.output.sanitize import as_list, counted

# Limit per list.
MAX_ROWS = 30
MAX_SLOWEST = 10
_SINCE = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def main(settings: Settings, since: str | None, *, as_json: bool) -> int:
    """Print the report. Raises `ConfigurationError` if there is no audit, or `since` is not a valid time."""
    if (file := audit_file(settings)) is None:
        raise ConfigurationError("upstreams.audit_file is empty: no audit is written", "Set it to a file's name.")
    begin = _begin(since)
    try:
        found = report(line for line in read_lines(file) if begin is None or str(line.get("time", "")) >= begin)
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc.strerror}", "See upstreams.audit_file.") from exc
    sys.stdout.write(f"{json.dumps(found, indent=2) if as_json else to_text(found, since)}\n")
    return 0


def _begin(since: str | None) -> str | None:
    """The start time in the audit's format."""
    if since is None:
        return None
    try:
        if (match := _SINCE.fullmatch(since)) is not None:
            begin = datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            begin = datetime.fromisoformat(since).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{since!r} is not a valid time", "Use 2026-01-31, 1d, 12h or 30m.") from None
    return begin.isoformat(timespec="milliseconds")


def report(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Summarize by tool: refusals, new and changed tools, errors, slowest calls."""
    tools: dict[str, Counter[str]] = {}
    refusals: Counter[tuple[str, str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    changes: list[dict[str, Any]] = []
    slowest: list[dict[str, Any]] = []
    for line in lines:
        if "event" in line:
            changes.append(line)
            continue
        name, outcome = f"{line.get('server')}.{line.get('tool')}", str(line.get("outcome"))
        counts = tools.setdefault(name, Counter())
        counts["calls"] += 1
        counts[outcome] += 1
        counts["bytes"] += _number(line.get("size"))
        counts["ms"] += _number(line.get("ms"))
        if outcome in ("denied", "limit") or line.get("decision") == "refuse":
            refusals[name, str(line.get("rule")), str(line.get("approved") or "")] += 1
        elif outcome != "ok":
            errors[name, outcome] += 1
        slowest = sorted([*slowest, line], key=lambda one: -_number(one.get("ms")))[:MAX_SLOWEST]
    return {
        "calls": sum(counts["calls"] for counts in tools.values()),
        "tools": {name: dict(counts) for name, counts in sorted(tools.items(), key=lambda item: -item[1]["calls"])},
        "refusals": [
            {"tool": tool, "rule": rule, "answer": answer, "count": count}
            for (tool, rule, answer), count in refusals.most_common()
        ],
        "errors": [
            {"tool": tool, "outcome": outcome, "count": count} for (tool, outcome), count in errors.most_common()
        ],
        "changes": changes,
        "slowest": slowest,
    }


def _number(value: Any) -> int:
    return round(value) if isinstance(value, int | float) else 0


def to_text(found: dict[str, Any], since: str | None) -> str:
    """Format it for a person. Names are untrusted and never reach the terminal unchanged."""
    parts = [f"{counted(found['calls'], 'call of a tool', 'calls of tools')}{f' since {since}' if since else ''}"]
    parts += _table(
        "by tool",
        [
            f"{counts['calls']:>7,}  {counts.get('ok', 0):>7,} ok  {counts['ms'] / counts['calls']:>9,.0f} ms each  "
            f"{counts['bytes']:>12,} bytes  {plain(name)}"
            for name, counts in found["tools"].items()
        ],
    )
    parts += _table(
        "refused",
        [
            f"{row['count']:>7,}  {plain(row['tool'])}: {plain(row['rule'])}"
            + (f", the user said {plain(row['answer'])}" if row["answer"] else "")
            for row in found["refusals"]
        ],
    )
    parts += _table(
        "errors", [f"{row['count']:>7,}  {plain(row['tool'])}: {row['outcome']}" for row in found["errors"]]
    )
    parts += _table("tools that changed", [_change(line) for line in found["changes"]])
    parts += _table(
        "slowest",
        [
            f"{_number(line.get('ms')):>9,} ms  {plain(line.get('server'))}.{plain(line.get('tool'))}  "
            f"{plain(line.get('time'))}"
            for line in found["slowest"]
        ],
    )
    return "\n".join(parts)


def _table(title: str, rows: list[str]) -> list[str]:
    more = [f"  ... and {len(rows) - MAX_ROWS:,} more (--json has them)"] if len(rows) > MAX_ROWS else []
    return ["", f"{title}:", *(f"  {row}" for row in rows[:MAX_ROWS]), *more] if rows else []


def _change(line: dict[str, Any]) -> str:
    if line.get("event") != "tools_changed":
        return f"{plain(line.get('time'))}  {plain(line.get('event'))}: {plain(line.get('count'))}"
    kinds = [
        f"{kind}: {', '.join(map(plain, as_list(line[kind])[:MAX_ROWS]))}"
        for kind in ("new", "changed", "gone")
        if kind in line
    ]
    return f"{plain(line.get('time'))}  {plain(line.get('server'))}  {'; '.join(kinds)}"
