"""A guest's text in a result beside the server's own notes: the text of a cell, and names of its files.

A cell may print the exact text of a note: it is marked there, so that an unmarked note is always the server's.
"""

import re

from kernelmcp.output.sanitize import ANSI, IMITATION, OWN, REPORT, clean

# What a reader does not see, or takes for a blank: blanks, control and format characters, escape sequences.
_BLANK = rf"(?:{ANSI.pattern}|[^\w!-~])"
_ANY = rf"{_BLANK}{{0,9}}+"
# The beginnings of the notes; a test checks every note in these modules against it.
_BEGINNINGS = (
    r"(?:The (?:execution|cell|kernel|process of|server|session|files of|time limit|cancel|end of)\b"
    r"|The Markdown fences\b"
    r"|All variables\b|All definitions of\b|This (?:ran in|is the new|continues)\b|Your earlier session\b"
    r"|It waits for\b|Lost since\b|(?:create|restore)_session\(|A (?:person (?:ran|runs)|picture of)\b"
    r"|Pictures that\b|Code sees\b"
    r"|Files changed:|From tasks of\b|displayed:|more was displayed\b|No folder (?:of|is)\b|Did you mean /volumes/"
    r"|/volumes/|\d[\d,]* (?:pictures?(?::| could not)|objects? w|forms? of displayed|more displayed))"
)
_NOTE = re.compile(rf"\[(?={_ANY}{_BEGINNINGS.replace(' ', f'{_BLANK}{{1,9}}+')}|{_ANY}kernelmcp{_ANY}\])")
_PLAIN_NAME = re.compile(r"[\w./+@=~-]+(?: [\w./+@=~-]+)*")


def printed(text: str) -> str:
    """A guest's text, with imitations of notes and of the kernel process's reports marked."""
    return _NOTE.sub("[printed: ", text)


def with_reports(stderr: str) -> str:
    """The same of stderr, with the reports as they are read: without their sign."""
    return OWN.join(map(printed, stderr.split(REPORT)))


def unchanged_with_reports(stderr: str) -> str:
    """Stderr for programs: only the exact imitations of reports are marked."""
    return OWN.join(part.replace(OWN, IMITATION) for part in stderr.split(REPORT))


def is_seen(text: str) -> bool:
    """False for a text of blanks and signs without a shape: several models' APIs refuse a block of nothing else."""
    # The beginning of nearly every text tells. If it does not, each different sign is looked at, and not each place.
    return any(sign.isprintable() and not sign.isspace() for part in (text[:100], set(text)) for sign in part)


def shown(path: str) -> str:
    """The path on one line, quoted unless it is clearly a name."""
    cleaned = clean(path)
    return cleaned if _PLAIN_NAME.fullmatch(cleaned) and cleaned.isprintable() else printed(repr(cleaned))
