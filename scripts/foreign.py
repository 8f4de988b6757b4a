"""Runs the test suites of ipykernel and nbclient against this kernel, as `python3`, and prints counts and failures.

    scripts/foreign [ipykernel | nbclient]

Their tests are in their source distributions, which pip fetches from the index that it is configured for, in the
versions that are installed; what the tests need beside that goes into a temporary folder. docs/foreign-suites.md says
what is left, and why.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from IPython.core.profiledir import ProfileDir
from jupyter_client.kernelspec import KernelSpecManager

SUITES = {
    "ipykernel": ["tests/test_message_spec.py", "tests/test_kernel.py"],
    "nbclient": ["tests/test_client.py"],
}
NEEDED = ["pytest-asyncio", "pytest-timeout", "flaky", "testpath", "xmltodict", "nbconvert", "ipywidgets"]
OPTIONS = [
    *("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function", "-o", "filterwarnings="),
    *("-q", "-rf", "--tb=no", "--color=no", "--durations=0", "--durations-min=9999", "--timeout=120"),
]


def main() -> int:
    names = sys.argv[1:] or list(SUITES)
    with tempfile.TemporaryDirectory(prefix="kmf-") as folder:
        home = Path(folder)
        make_kernelspec(home)
        run_pip("install", "--quiet", "--target", str(home / "site"), *NEEDED)
        return max(run_suite(home, name) for name in names)


def make_kernelspec(home: Path) -> None:
    """The installed kernelspec under the name that the suites start."""
    source = KernelSpecManager().get_kernel_spec("kernelmcp").resource_dir
    target = home / "jupyter" / "kernels" / "python3"
    shutil.copytree(source, target)
    spec = json.loads((target / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    (target / "kernel.json").write_text(json.dumps(spec))


def run_pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def run_suite(home: Path, name: str) -> int:
    """Run the suite of one package; pytest's exit code."""
    wanted = f"{name}=={version(name)}"
    run_pip("download", "--quiet", "--no-deps", "--no-binary", name, "--dest", str(home), wanted)
    (archive,) = home.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(home, filter="data")
    # Ours first: what pip has put beside brings versions of its own.
    paths = [*filter(os.path.isdir, sys.path), str(home / "site")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "JUPYTER_PATH": str(home / "jupyter"),
        "IPYTHONDIR": str(home / "ipython"),
        "KERNELMCP_PACKAGES": json.dumps({"preinstalled": ["ipywidgets"]}),  # nbclient's notebooks use it
    }
    ProfileDir.create_profile_dir(str(home / "ipython" / "profile_default"))  # ipykernel's tests look for it
    prepare(environment)
    print(f"\n{wanted}", flush=True)
    tests = home / f"{name}-{version(name)}"
    command = [sys.executable, "-m", "pytest", *OPTIONS, *SUITES[name]]
    return subprocess.run(command, cwd=tests, env=environment, check=False).returncode


def prepare(environment: dict[str, str]) -> None:
    """Kernels do not wait for what is preinstalled."""
    subprocess.run([sys.executable, "-P", "-m", "kernelmcp_kernel.prepare"], env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
