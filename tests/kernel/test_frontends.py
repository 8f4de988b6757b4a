"""The kernel under other people's programs, unmodified."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from ..processes import is_alive
from .conftest import running_kernel
from .driver import DEADLINE, wait_until

BIN = Path(sys.executable).parent


def test_nbclient_executes_a_notebook() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in ("x = 20", "print('hi')\nx + 22")])
    NotebookClient(notebook, kernel_name="kernelmcp", timeout=DEADLINE).execute()
    stream, result = notebook.cells[1].outputs
    assert (stream.text, result.data["text/plain"]) == ("hi\n", "42")


def test_jupyter_run_prints_what_a_file_prints(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text("print(6 * 7)")
    command = [BIN / "jupyter", "run", "--kernel=kernelmcp", "cell.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert ran.stdout.strip() == "42"


def test_jupyter_console_attaches_to_a_running_kernel() -> None:
    with running_kernel() as kernel:
        kernel.run("shared = 'from the other client'")
        command = [BIN / "jupyter", "console", "--simple-prompt", "--existing", kernel.manager.connection_file]
        ran = subprocess.run(
            command, input="print(shared)\nexit\n", capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert "from the other client" in ran.stdout
        assert kernel.run("shared").result == "'from the other client'"


def test_the_kernel_runs_under_ipkernelapp(tmp_path: Path) -> None:
    start = (
        "from ipykernel.kernelapp import IPKernelApp; "
        "from kernelmcp_kernel.jupyter.sandbox_kernel import SandboxKernel; "
        "IPKernelApp.launch_instance(kernel_class=SandboxKernel)"
    )
    spec = tmp_path / "kernels" / "kernelmcp"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-c", start, "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "app", "language": "python", "interrupt_mode": "message"}
    (spec / "kernel.json").write_text(json.dumps(content))
    with running_kernel(search=tmp_path) as kernel:
        assert kernel.run("1 + 1").result == "2"
        ran = kernel.interrupt_once_it_prints("print('go', flush=True)\nwhile True: pass")
        assert ran.error == "KeyboardInterrupt: "
        requests = [kernel.send("import time; time.sleep(3); 1 / 0"), kernel.send("2")]
        assert [kernel.reply(r)["content"]["status"] for r in requests] == ["error", "aborted"]
        guests = kernel.guests()
        kernel.send("import os; os.kill(os.getpid(), 9)")
        assert wait_until(lambda: not kernel.manager.is_alive())
        assert not any(is_alive(guest) for guest in guests)


def test_a_private_directory_goes_with_its_kernel_and_a_killed_one_is_swept(tmp_path: Path) -> None:
    def sandboxes() -> list[Path]:
        return [path for path in tmp_path.glob("*/sandbox-*") if path.is_dir()]

    with running_kernel(TMPDIR=str(tmp_path)) as kernel:
        kernel.run("open('kept.txt', 'w').write('x')")
        (killed,) = sandboxes()
        assert (killed / "workspace" / "kept.txt").exists()
        kernel.process.kill()
        kernel.process.wait(DEADLINE)
    with running_kernel(TMPDIR=str(tmp_path)) as kernel:
        (alive,) = sandboxes()
        assert alive != killed
        kernel.client.shutdown()
        assert wait_until(lambda: sandboxes() == [])
