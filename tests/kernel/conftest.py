"""A real kernel, driven by plain jupyter_client."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from kernelmcp_kernel.runtime.places import PACKAGE

from ..processes import is_alive
from ..starting import forked_kernels, start_python
from .driver import DEADLINE, Broken, Kernel, wait_until


@contextmanager
def running_kernel(search: Path | None = None, cwd: Path | None = None, **environment: str) -> Iterator[Kernel]:
    """Start a kernel with these variables added to its environment; at the end nothing of it is left.

    `search` is a share/jupyter folder to take the kernelspec from, instead of the installed one; `cwd` where the
    notebook would be.
    """
    kernel = Kernel(lambda: _started(search, cwd, environment))
    try:
        yield kernel
    finally:
        kernel.close()


@contextmanager
def _started(
    search: Path | None, cwd: Path | None, environment: dict[str, str]
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    with tempfile.TemporaryDirectory(prefix="kmk-") as folder:
        manager = KernelManager(
            kernel_name="kernelmcp",
            transport="ipc",
            ip=f"{folder}/k",
            connection_file=f"{folder}/k.json",
        )
        if search is not None:
            manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[str(search / "kernels")])
        with forked_kernels():
            manager.start_kernel(env={**os.environ, **environment}, cwd=str(cwd or folder))
        client: BlockingKernelClient = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=DEADLINE)
            process = psutil.Process(manager.provisioner.pid)
            processes = [process, *process.children()]
            yield manager, client
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        assert wait_until(lambda: not any(is_alive(p) for p in processes))


def run_prepare(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m kernelmcp_kernel.prepare` with these variables added to its environment, until it has ended."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = PACKAGE / "prepare" / "__main__.py"
    with start_python(program, *arguments, env={**os.environ, **environment}, text=True, **pipes) as process:
        out, error = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """One kernel for the tests of a file; each leaves it usable."""
    with running_kernel() as running:
        yield running


@pytest.fixture(autouse=True)
def shared_kernels_answer(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: a kernel of the file's that no longer answers fails this test, and the next one has a new
    kernel. A test's own kernel has ended by then."""
    yield
    for kernel in [found for found in request.node.funcargs.values() if isinstance(found, Kernel) and found.is_open]:
        try:
            kernel.check()
        except Broken as broken:
            kernel.replace()
            pytest.fail(f"This test has broken the kernel of its file, which was replaced: {broken}.", pytrace=False)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    return tmp_path / "sandbox"


@pytest.fixture
def own_kernel(sandbox: Path) -> Iterator[Kernel]:
    """A kernel that a test may kill, with a sandbox directory that the test can see."""
    with running_kernel(KERNELMCP_SANDBOX_DIRECTORY=str(sandbox), KERNELMCP_MEMORY_MB="256") as running:
        yield running
