"""Packages that every session has, imported in a boot image of their own."""

from __future__ import annotations

import json
from pathlib import Path

from kernelmcp_kernel.runtime.places import PACKAGE

from .conftest import running_kernel
from .wheels import Index, serve_index


def _fill(index: Index) -> None:
    index.add("pure", requires=("helper",), files={"pure_data.txt": "as it came"})
    index.add("helper")
    # What is compiled cannot be in an image; this one would not even load.
    index.add("withso", files={"withso/__init__.py": "from withso import fast", "withso/fast.so": b"\0asm"})
    index.add("raises", files={"raises/__init__.py": "raise SystemExit('at import')"})
    index.add("writes", files={"writes/__init__.py": "open('/lib/kernelmcp/micropip.py', 'a').write('#')"})


def test_preinstalled_packages_are_imported_in_the_image(tmp_path: Path) -> None:
    guest_code = PACKAGE / "inside" / "micropip.py"
    before = guest_code.read_bytes()
    wanted = ["pure", "withso", "raises", "writes"]
    with serve_index(tmp_path / "index") as index:
        _fill(index)
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": wanted}
        environment = {"KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_PACKAGES": json.dumps(settings)}
        with running_kernel(**environment) as kernel:
            found = kernel.run(
                "import sys; sorted({'pure', 'helper', 'withso', 'raises', 'writes'} & set(sys.modules))"
            )
            assert found.result == "['helper', 'pure']"
            assert kernel.run("import pure; pure.version, pure.__file__").result == (
                "('1.0', '/lib/packages/pure-1.0/pure.py')"
            )
            assert kernel.run("%pip install 'pure>=1'").outputs[-1]["content"]["data"]["text/plain"] == (
                "Already installed: pure-1.0"
            )
            assert "PackageConflict" in kernel.run("%pip install pure==2").error
            kernel.guests()[0].kill()
            kernel.run("1")
            assert kernel.run("import helper, pure; open('/lib/packages/pure-1.0/pure_data.txt').read()").status == "ok"
        asked = len(index.requests)
        with running_kernel(**environment) as kernel:
            assert kernel.run("import sys; 'pure' in sys.modules").result == "True"
        assert index.requests[asked:] == [], "the second kernel found the image"
    assert guest_code.read_bytes() == before, "a package wrote to our files when it was imported"


def test_without_the_packages_a_kernel_starts_all_the_same(tmp_path: Path) -> None:
    with serve_index(tmp_path / "index") as index:
        settings = {"index_url": index.url, "pyodide_url": str(tmp_path), "preinstalled": ["absent"]}
        environment = {"KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_PACKAGES": json.dumps(settings)}
        with running_kernel(**environment) as kernel:
            assert kernel.run("1 + 1").result == "2"
        asked = len(index.requests)
        with running_kernel(**environment) as kernel:
            assert kernel.run("1 + 1").result == "2"
        assert index.requests[asked:] == [], "not tried again so soon"
