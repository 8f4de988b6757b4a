"""A program of host/ that has done its work is gone, whatever Node would wait for."""

import io
import signal

import pytest

from kernelmcp_kernel.runtime.node import status_of


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-signal.SIGKILL, b"killed for its memory"),
        (-signal.SIGKILL, b"a mark\0and no number"),
        (-signal.SIGKILL, b"a mark\0" + b"0" * 4),
        (3, b"it ended by itself\0000"),
        (-signal.SIGABRT, b"\0000"),
    ],
)
def test_another_end_is_what_it_is(status: int, said: bytes) -> None:
    assert status_of(status, io.BytesIO(said)) == (status, said.decode())


def test_whoever_has_said_much_is_understood() -> None:
    status, words = status_of(-signal.SIGKILL, io.BytesIO(b"warning: \0" * 100_000 + b"the end\0005"))
    assert status == 5
    assert words.endswith("the end")
    assert len(words) < 100_000
