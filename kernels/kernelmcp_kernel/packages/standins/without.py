"""Declared dependencies that packages can do without if they are unavailable: each was checked, and tried.

Only dependencies that a package itself treats as optional, or needs only for a feature that then reports it: its code
imports them in a `try`, or where they are used, or `inside/kernelmcp_guest/packages/shims.py` handles it.
"""

from __future__ import annotations

# Package name -> dependency -> its purpose.
DISPENSABLE: dict[str, dict[str, str]] = {
    "langsmith": {"zstandard": "it sends traces uncompressed"},
    "pdfminer-six": {"cryptography": "PDFs that are encrypted with AES cannot be read"},
    "pyjwt": {"cryptography": "it signs and checks with HMAC only (HS256, HS384, HS512)"},
    "sqlalchemy": {"greenlet": "there are no engines of sqlalchemy.ext.asyncio"},
}
