"""A further language is a folder and a row: here Tally, in a copy of the installation that has both."""

from __future__ import annotations

from pathlib import Path

import kernelmcp_kernel
from kernelmcp_kernel.languages import find, table

PACKAGE = Path(kernelmcp_kernel.__file__).parent


def test_the_table_names_a_folder_for_each_row_and_no_magic_twice() -> None:
    magics = [magic for row in table() for magic in row.magics]
    assert len(magics) == len(set(magics))
    for row in table():
        assert {"file_extension", "mimetype"} <= set(find(row.name).language_info)
        assert (PACKAGE / "languages" / row.name / "language.py").is_file()
    folders = {file.parent.name for file in (PACKAGE / "languages").glob("*/language.py")}
    assert folders == {row.name for row in table()}
