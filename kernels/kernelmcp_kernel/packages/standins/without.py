"""What packages need by their metadata, and can do without where it cannot be had: each was looked at, and used so.

Only what a package itself takes for optional, or what is needed for a part of it that says so then: its code imports it
in a `try`, or where it is used, or `inside/kernelmcp_guest/packages/shims.py` sees to it.
"""

from __future__ import annotations

# Name of a package -> of what it needs -> what that is needed for.
DISPENSABLE: dict[str, dict[str, str]] = {
    "langsmith": {"zstandard": "it sends traces uncompressed"},
    "pdfminer-six": {"cryptography": "PDFs that are encrypted with AES cannot be read"},
    "pyjwt": {"cryptography": "it signs and checks with HMAC only (HS256, HS384, HS512)"},
    "sqlalchemy": {"greenlet": "there are no engines of sqlalchemy.ext.asyncio"},
}
