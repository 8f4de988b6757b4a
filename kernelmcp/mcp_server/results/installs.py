"""An installation's result: new packages, those already present, and the error code if it failed.

The install tool returns it, and so does get_execution if the installation took longer than the tool waits, in this
server or a later one.
"""

from kernelmcp.errors import InvalidArgument, PackageFailed, PackageNotFound, PackageRefused, ServerError
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results.printed import printed
from kernelmcp.mcp_server.schemas import InstallFields
from kernelmcp.sessions.installed_packages import Installation, installation

# The beginning of a cell that only installs: the tool's own, and a person's.
COMMAND = "%pip install "
# The kernel's exceptions by name: our error class, and the advice for the caller. For any other: try again.
_ERRORS: dict[str, tuple[type[ServerError], str]] = {
    "InvalidRequirement": (InvalidArgument, 'Write a name and, if need be, versions, as in "pydantic>=2".'),
    "PackageNotFound": (PackageNotFound, "Check the spelling and the version, or use another package."),
    "PackageNotSupported": (PackageNotFound, "Use another package, or do without."),
    "PackagesDisabled": (PackageRefused, "Do without the package."),
    "PackageDenied": (PackageRefused, "Use a package that the server allows, or do without."),
    "PackageConflict": (PackageFailed, "Ask for other versions, or install it in a session of its own."),
    "PackageTooLarge": (PackageFailed, "Use a smaller package."),
    "PackageInvalid": (PackageFailed, "Ask for another version."),
    "PackageUnreachable": (PackageFailed, "Do without it for now, or try again later."),
    "PackageCacheError": (PackageFailed, "The server's operator must free space or repair its package cache."),
}


def is_install(execution: Execution) -> bool:
    """True if its cell is an installation and nothing else."""
    return execution.code.startswith(COMMAND) and "\n" not in execution.code.strip()


def installation_of(execution: Execution) -> Installation:
    """All packages that its cell has installed."""
    parts = [part for each in execution.outputs.displays if (part := installation(each.data)) is not None]
    return Installation(
        installed=[package for part in parts for package in part.installed],
        already_present=[package for part in parts for package in part.already_present],
        notes=[note for part in parts for note in part.notes],
    )


def fields(found: Installation) -> InstallFields:
    return {
        "installed": [{"name": each.name, "version": each.version, "source": each.source} for each in found.installed],
        "already_present": [{"name": each.name, "version": each.version} for each in found.already_present],
    }


def server_error(execution: Execution) -> ServerError:
    """The reason why an installation failed."""
    error = execution.error
    name, text = (error.name, error.value) if error else ("", "the installation failed")
    context = {"session_id": execution.session_id, "execution_id": execution.id, "reason": name}
    kind, suggestion = _ERRORS.get(name, (PackageFailed, "Try again; if it fails again, ask the server's operator."))
    # On one line: below it stands the server's advice.
    return kind(printed(" ".join(text.split())), suggestion, **context)
