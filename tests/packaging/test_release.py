"""scripts/release: what it refuses, and that only a whole run makes the tag. What it calls is played."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RELEASE = Path(__file__).resolve().parents[2] / "scripts" / "release"
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-25\n"
# Builds empty archives, and an environment whose kernelmcp says $SAYS.
PYTHON = """#!/usr/bin/env bash
set -euo pipefail
if [[ $1 == scripts/version.py && -e other-version ]]; then
  echo "not 1.2.3: server.json" >&2
  exit 1
fi
case ${2-} in
  "import sys;"*) echo "$0" ;;
  hatchling) touch "${@: -1}/kernelmcp-1.2.3.tar.gz" ;;
  pip) touch "${@: -2:1}/kernelmcp-1.2.3-py3-none-any.whl" ;;
  venv)
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\n' >"$3/bin/pip"
    printf '#!/bin/sh\\necho "%s"\\n' "$SAYS" >"$3/bin/kernelmcp"
    chmod +x "$3/bin/pip" "$3/bin/kernelmcp"
    ;;
esac
"""


class Tree:
    """A repository with the script, and the little that it reads and calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.says = "kernelmcp 1.2.3"
        self._environment = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for role in ("AUTHOR", "COMMITTER"):
            self._environment |= {f"GIT_{role}_NAME": "test", f"GIT_{role}_EMAIL": "test@localhost"}
        self.write("scripts/check", "#!/bin/sh\n")
        self.write("scripts/test", "#!/bin/sh\necho tested >ignored\n")
        self.write("scripts/bundle", '#!/bin/sh\ntouch "${1%-py3-none-any.whl}.mcpb"\n')
        self.write("python", PYTHON)
        self.write("kernelmcp/version.py", '__version__ = "1.2.3"\n')
        self.write("CHANGELOG.md", CHANGES)
        self.write(".gitignore", "/dist/\n/ignored\n")
        shutil.copy2(RELEASE, folder / "scripts")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=A commit")

    def git(self, *arguments: str) -> str:
        return self._run("git", *arguments, check=True).stdout.strip()

    def release(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self._run("scripts/release", *options, check=False)

    def _run(self, *command: str, check: bool) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self._environment, "PYTHON": str(self.folder / "python"), "SAYS": self.says}
        return subprocess.run(
            command, cwd=self.folder, env=environment, check=check, capture_output=True, text=True, timeout=60
        )

    def refuses(self, reason: str, *options: str) -> None:
        tags = self.git("tag")
        done = self.release(*options)
        assert done.returncode == 1
        assert reason in done.stderr
        assert self.git("tag") == tags
        assert not (self.folder / "dist").exists()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_release_has_an_annotated_tag_two_archives_and_an_extension(tree: Tree) -> None:
    done = tree.release()
    assert done.returncode == 0, done.stderr
    assert tree.git("cat-file", "-t", "v1.2.3") == "tag"
    assert tree.git("rev-parse", "v1.2.3^{commit}") == tree.git("rev-parse", "HEAD")
    archives = {file.name for file in (tree.folder / "dist").iterdir()}
    assert archives == {"kernelmcp-1.2.3.tar.gz", "kernelmcp-1.2.3-py3-none-any.whl", "kernelmcp-1.2.3.mcpb"}
    assert (tree.folder / "ignored").exists()


def test_a_dry_run_makes_no_tag(tree: Tree) -> None:
    done = tree.release("--dry-run", "--skip-tests")
    assert done.returncode == 0, done.stderr
    assert tree.git("tag") == ""
    assert len(list((tree.folder / "dist").iterdir())) == 3
    assert not (tree.folder / "ignored").exists()


@pytest.mark.parametrize("name", ["new.py", "CHANGELOG.md"])
def test_a_tree_with_changes_is_refused(tree: Tree, name: str) -> None:
    tree.write(name, f"{CHANGES}\n")
    tree.refuses("not committed", "--dry-run")


@pytest.mark.parametrize("title", ["[Unreleased]", "[1.2.30] - 2026-11-25", "[1x2.3] - 2026-11-25", "[1.2.3]"])
def test_a_version_without_a_section_in_the_changelog_is_refused(tree: Tree, title: str) -> None:
    tree.write("CHANGELOG.md", f"# Changelog\n\n## {title}\n")
    tree.commit()
    tree.refuses("no section for the version: ## [1.2.3]")


def test_no_version_and_one_that_has_a_tag_are_refused(tree: Tree) -> None:
    tree.git("tag", "v1.2.3")
    tree.refuses("the tag v1.2.3 exists")
    tree.write("kernelmcp/version.py", '__version__: str = ""\n')
    tree.commit()
    tree.refuses("has no version")


def test_another_version_in_another_file_is_refused(tree: Tree) -> None:
    tree.write("other-version", "")
    tree.commit()
    tree.refuses("not 1.2.3: server.json")


def test_the_archives_of_a_tag_are_built_from_its_commit_without_tests(tree: Tree) -> None:
    tree.refuses("this commit has no tag v1.2.3", "--tagged")
    tree.git("tag", "v1.2.3")
    done = tree.release("--tagged")
    assert done.returncode == 0, done.stderr
    assert len(list((tree.folder / "dist").iterdir())) == 3
    assert not (tree.folder / "ignored").exists()
    shutil.rmtree(tree.folder / "dist")
    tree.write("CHANGELOG.md", f"{CHANGES}\n")
    tree.commit()
    tree.refuses("this commit has no tag v1.2.3", "--tagged")


def test_an_unknown_option_is_refused(tree: Tree) -> None:
    tree.refuses("unknown option: --dryrun", "--dryrun")


def test_a_check_or_a_test_that_fails_ends_it(tree: Tree) -> None:
    for program in ("test", "check"):
        tree.write(f"scripts/{program}", f"#!/bin/sh\necho {program} failed >&2\nexit 1\n")
        tree.commit()
        tree.refuses(f"{program} failed")


def test_a_wheel_that_says_another_version_and_a_tree_that_changes_meanwhile_are_refused(tree: Tree) -> None:
    tree.says = "kernelmcp 1.2.2"
    tree.refuses("the installed wheel says: kernelmcp 1.2.2")
    tree.says = "kernelmcp 1.2.3"
    tree.write("scripts/test", "#!/bin/sh\necho >new.py\n")
    tree.commit()
    tree.refuses("changed meanwhile")
