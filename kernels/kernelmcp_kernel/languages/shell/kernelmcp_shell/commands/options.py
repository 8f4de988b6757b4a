"""The options of a command line: an unknown one is refused, never ignored."""

from __future__ import annotations

import getopt
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_options(
    name: str, argv: list[str], letters: str, words: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The options by their letters, in order, and the operands. `letters` as in getopt; `words`: the letters of long
    options, which end with "=" if they take a value. Raises CommandFailed."""
    try:
        found, operands = getopt.gnu_getopt(argv, letters, list(words))
    except getopt.GetoptError as error:
        reason = error.msg.replace("not recognized", "is not supported here")
        raise CommandFailed(
            1, f"{name}: {reason.replace('must not have an argument', 'with a value is not supported here')}"
        ) from None
    options: dict[str, str] = {}
    for option, value in found:
        word = option.removeprefix("--")
        letter = option[1:] if word == option else words[word if word in words else f"{word}="]
        options.pop(letter, None)
        options[letter] = value
    return options, operands
