"""The sealed file of saved variables: what is refused, and by which name."""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from kernelmcp.sessions.hibernation import envelope as envelopes
from kernelmcp.sessions.hibernation.envelope import Envelope, StateRefused, key_of, seal, unseal

STATE = bytes(range(256)) * 20_000
KEY = b"k" * 32


@dataclass
class Sealed:
    file: Path
    envelope: Envelope

    def change(self, position: int) -> None:
        with self.file.open("r+b") as stream:
            stream.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
            byte = stream.read(1)[0]
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte ^ 1]))


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    file = tmp_path / "state"
    file.write_bytes(STATE)
    envelope = Envelope(
        session="s",
        principal="p",
        number=3,
        saved_at="2026-01-01T00:00:00+00:00",
        flavor="medium",
        size=len(STATE),
        image="i",
        mounts=[{"folder": "/f", "point": "/p"}],
        execution_count=7,
        dead=["variables of bash"],
    )
    seal(file, envelope, KEY)
    return Sealed(file, envelope)


def refusal(file: Path, key: bytes = KEY) -> str:
    with pytest.raises(StateRefused) as refused:
        unseal(file, key)
    return str(refused.value)


def test_it_is_read_as_it_was_sealed(sealed: Sealed) -> None:
    found = unseal(sealed.file, KEY)
    assert msgspec.structs.replace(found, key="") == sealed.envelope
    assert sealed.file.read_bytes().startswith(STATE), "the state itself is unchanged, from its first byte on"


@pytest.mark.parametrize("position", [0, 100_000, len(STATE) - 1, len(STATE) + 20, -13, -40])
def test_a_flipped_bit_anywhere_is_damage(sealed: Sealed, position: int) -> None:
    sealed.change(position)
    assert refusal(sealed.file) in ("is damaged", "was sealed with another key than this home's")


@pytest.mark.parametrize("size", [0, 1, 43, 44, len(STATE), len(STATE) + 100])
def test_a_file_that_is_cut_is_refused(sealed: Sealed, size: int) -> None:
    os.truncate(sealed.file, size)
    assert refusal(sealed.file) == "is cut short"


def test_a_part_in_the_middle_that_is_missing_is_damage(sealed: Sealed) -> None:
    content = sealed.file.read_bytes()
    sealed.file.write_bytes(content[:1000] + content[1001:])
    assert refusal(sealed.file) == "is damaged"


def test_of_another_home(sealed: Sealed) -> None:
    assert refusal(sealed.file, b"x" * 32) == "was sealed with another key than this home's"


def test_of_a_later_version(sealed: Sealed) -> None:
    seal(sealed.file, msgspec.structs.replace(sealed.envelope, version=envelopes.VERSION + 1), KEY)
    assert refusal(sealed.file) == "was written by a later version of kernelmcp"


def test_an_envelope_cannot_name_another_length(sealed: Sealed, tmp_path: Path) -> None:
    """Otherwise a part of the text would be read as state, or of the state as text."""
    wrong = tmp_path / "wrong"
    wrong.write_bytes(STATE + b"more")
    seal(wrong, sealed.envelope, KEY)  # cuts what is behind the state
    assert unseal(wrong, KEY).size == len(STATE)


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    key = key_of(tmp_path)
    assert len(key) == 32
    assert key_of(tmp_path) == key
    assert (tmp_path / envelopes.KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_damaged_key_is_not_used(tmp_path: Path) -> None:
    (tmp_path / envelopes.KEY_FILE).write_bytes(b"short")
    with pytest.raises(OSError, match="is not a key"):
        key_of(tmp_path)
