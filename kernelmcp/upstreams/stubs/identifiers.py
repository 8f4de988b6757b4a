"""Names of servers, tools and arguments as Python identifiers, which are also file names.

An identifier depends on the set of names and never on their order: after a reconnect, a name that a program knows must
not stand for another tool. Names that collide on a case-insensitive disk get different identifiers.
"""

import hashlib
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable

MAX_CHARS = 80
_DIGEST_CHARS = 4


def identifiers(names: Iterable[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """Return an identifier for each name: the name itself if it is a valid one. If several names become the same, all
    but the name that is the identifier itself get a suffix derived from the name alone."""
    originals = sorted(set(names))
    plain = {name: identifier(name, reserved) for name in originals}
    sharing: dict[str, list[str]] = {}
    for name in originals:
        sharing.setdefault(plain[name].casefold(), []).append(name)
    found: dict[str, str] = {}
    taken = {key for key, group in sharing.items() if len(group) == 1}
    for key, group in sharing.items():
        # At most one keeps it: two that differ only in case cannot both.
        keeps = group[0] if len(group) == 1 else next((name for name in group if plain[name] == name), None)
        if keeps is not None:
            found[keeps] = plain[keeps]
            taken.add(key)
    for name in originals:
        if name not in found:
            found[name] = _with_suffix(plain[name], name, taken)
            taken.add(found[name].casefold())
    return found


def identifier(name: str, reserved: Collection[str] = ()) -> str:
    """ASCII letters, digits and underscores; no keyword, dunder or reserved name; of limited length."""
    text = name[: 4 * MAX_CHARS]
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    found = re.sub(r"[^A-Za-z0-9_]+", "_", text)
    if found != name:
        found = found.strip("_")
    if found.startswith("__"):
        found = found.strip("_")
    if not found.strip("_"):
        found = f"name_{digest(name)}"
    if len(found) > MAX_CHARS or len(name) > 4 * MAX_CHARS:
        found = f"{found[:MAX_CHARS]}_{digest(name)}"
    if found[0].isdigit():
        found = f"_{found}"
    if keyword.iskeyword(found) or found in reserved:
        found = f"{found}_"
    return found


def digest(name: str, chars: int = _DIGEST_CHARS) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:chars]


def _with_suffix(base: str, name: str, taken: Collection[str]) -> str:
    chars = _DIGEST_CHARS
    while (found := f"{base}_{digest(name, chars)}").casefold() in taken:
        chars += 1
    return found
