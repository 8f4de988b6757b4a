"""The command line. Imports what a command needs only when it is called: `--version` loads neither a server nor the
settings."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmcp.config.choices import CLIENTS, level_name
from kernelmcp.errors import ConfigurationError, LayersMissing, ServerError
from kernelmcp.process_start import (
    fill_descriptors,
    keep_files_own,
    name_a_home,
    pause_garbage_collector,
    resume_garbage_collector,
    skip_slow_imports,
)
from kernelmcp.version import __version__

if TYPE_CHECKING:
    from kernelmcp.config.settings import Settings

AT_A_TERMINAL = """\
kernelmcp: waiting for an MCP client to speak on stdin. A client starts this command itself: `kernelmcp install
claude-desktop` sets one up, `kernelmcp demo` shows a session, `kernelmcp --help` lists the rest. Ctrl-D ends it.
"""
ON_WINDOWS = "kernelmcp: it needs Linux or macOS. On Windows, install it inside WSL and run the same command there.\n"
ON_OLD_MACOS = "kernelmcp: on macOS it needs Python 3.13 or newer: earlier ones have no os.waitid there.\n"
INSTALL_CLIENTS = (
    *("claude-desktop", "claude-code", "cursor", "vscode", "codex"),
    *("gemini-cli", "windsurf", "zed", "opencode"),
)
EXIT_CONFIGURATION = 2
EXIT_REFUSED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    fill_descriptors()
    skip_slow_imports()
    keep_files_own()
    name_a_home()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "serve")
    if sys.stdout is None and arguments[0] != "serve":  # it is closed, which `serve` has a sentence for
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not every terminal has each character of a cell
    try:
        try:
            return _run(arguments)
        finally:  # Python would flush it too late to be told of an error
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, BaseExceptionGroup) as exc:
        is_other = isinstance(exc, BaseExceptionGroup) and exc.split(BrokenPipeError)[1] is not None
        if is_other or sys.stdout is None:
            raise
        # `kernelmcp doctor | head`: nobody reads the rest, nor Python's error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED


def _run(arguments: Sequence[str]) -> int:
    parsed = _parser().parse_args(arguments)
    if sys.platform == "win32":
        sys.stderr.write(ON_WINDOWS)
        return EXIT_REFUSED
    if not hasattr(os, "waitid"):
        sys.stderr.write(ON_OLD_MACOS)
        return EXIT_REFUSED
    if parsed.run is not _serve:
        from kernelmcp.observability import logging_setup

        logging_setup.configure_command()
    try:
        return int(parsed.run(parsed))
    except ConfigurationError as exc:
        sys.stderr.write(f"kernelmcp: {exc.to_text()}\n")
        return EXIT_REFUSED if isinstance(exc, LayersMissing) else EXIT_CONFIGURATION
    except ServerError as exc:
        sys.stderr.write(f"kernelmcp: {exc.to_text()}\n")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        sys.stderr.write("kernelmcp: interrupted\n")
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelmcp",
        description="An MCP server that gives a language model a sandboxed Jupyter kernel of its own. "
        "Without a command: serve MCP over stdio.",
    )
    parser.add_argument("--version", action="version", version=f"kernelmcp {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    serve = commands.add_parser("serve", help="serve MCP (the default)")
    serve.add_argument(
        "--transport",
        choices=["stdio", "http", "sse"],
        help="default: stdio, or http if --host, --port or --insecure is given",
    )
    serve.add_argument("--host", help="for http and sse")
    serve.add_argument("--port", type=int, help="for http and sse")
    serve.add_argument(
        "--insecure", action="store_true", help="bind addresses other than loopback without authentication"
    )
    _add_files(serve)
    _add_folder(serve)
    serve.add_argument("--log-level", type=level_name, choices=["debug", "info", "warning", "error"])
    serve.set_defaults(run=_serve)

    demo = commands.add_parser("demo", help="drive the real server through a short session and write demo.ipynb")
    demo.add_argument("--output", type=Path, default=Path("demo.ipynb"), metavar="FILE")
    demo.add_argument("--kernelspec", help="use this kernelspec, not the server's default")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="show what is installed and which isolation layers hold")
    _add_files(doctor)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    install = commands.add_parser("install", help="add the server to a client's configuration")
    install.add_argument(
        "client", type=_with_hyphens, metavar="CLIENT", choices=INSTALL_CLIENTS, help=", ".join(INSTALL_CLIENTS)
    )
    install.add_argument("--dry-run", action="store_true", help="print the new configuration, change nothing")
    _add_folder(install)
    install.add_argument("--scope", choices=["user", "project"], default="user", help="project: for this folder only")
    install.add_argument("--uninstall", action="store_true", help="remove the server from the configuration")
    install.set_defaults(run=_install)

    setup = commands.add_parser("setup", help="fetch and prepare the most common packages")
    setup.add_argument(
        "names", nargs="*", metavar="science|minimal|fonts|NAME", help="a set, or packages by name; default: science"
    )
    setup.add_argument("--offline", type=Path, metavar="FILE", help="load them from a file written by --export")
    setup.add_argument("--export", type=Path, metavar="FILE", help="write them to a file for other machines")
    setup.add_argument("--yes", action="store_true", help="fetch packages from the index without asking")
    setup.add_argument("--remove", action="store_true", help="remove them: sessions fetch packages when needed")
    _add_files(setup)
    setup.set_defaults(run=_setup)

    _add_upstreams(commands.add_parser("upstreams", help="manage your other MCP servers, whose tools code can call"))

    replay = commands.add_parser("replay", help="run the cells of a notebook in a session")
    replay.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    replay.add_argument("--session", metavar="NAME", help="the session; default: one with the notebook's name")
    _add_files(replay)
    replay.set_defaults(run=_replay)

    audit = commands.add_parser("audit", help="show the calls to tools of your other MCP servers")
    audit.add_argument("--since", metavar="TIME", help="1d, 12h, 30m, or a date; default: the whole log")
    audit.add_argument("--json", action="store_true")
    _add_files(audit)
    audit.set_defaults(run=_audit)

    lab = commands.add_parser("lab", help="open JupyterLab on the live sessions of every running server")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=int, help="default: 8888, or the next one that is free")
    _add_files(lab)
    lab.set_defaults(run=_lab)

    _add_skills(commands.add_parser("skills", help="manage Python files that all sessions of a user share"))

    build_wheel = commands.add_parser(
        "build-wheel", help="build a wheel for sessions from a source package; needs Python 3.14"
    )
    build_wheel.add_argument("path", type=Path, metavar="PATH", help="a folder with pyproject.toml")
    build_wheel.add_argument("--config", type=Path, metavar="FILE", help="mcp.toml, for server.home")
    build_wheel.set_defaults(run=_build_wheel)
    return parser


def _add_upstreams(upstreams: argparse.ArgumentParser) -> None:
    actions = upstreams.add_subparsers(metavar="action", required=True)
    listed = actions.add_parser("list", help="list them, and where each comes from")
    tried = actions.add_parser("try", help="connect to one; show which tools are allowed, need approval, or are denied")
    tried.add_argument("--accept", action="store_true", help="accept its tools as they are now (pin = true)")
    login = actions.add_parser("login", help="log in to one in a browser (OAuth)")
    login.add_argument("--no-browser", action="store_true", help="only print the address")
    for one in (tried, login):
        one.add_argument("name", metavar="NAME")
    taken = actions.add_parser("import", help="copy another program's servers into mcp.toml")
    taken.add_argument("client", metavar="CLIENT", help=f"{', '.join(CLIENTS)}, or the path of a file like theirs")
    taken.add_argument("--dry-run", action="store_true", help="print what would be written")
    for action, each in (("list", listed), ("try", tried), ("login", login), ("import", taken)):
        _add_files(each)
        each.set_defaults(run=_upstreams, action=action)


def _add_skills(skills: argparse.ArgumentParser) -> None:
    actions = skills.add_subparsers(metavar="action", required=True)
    actions.add_parser("list", help="list promoted files, and those in sessions").set_defaults(action="list")
    promote = actions.add_parser("promote", help="show one, and ask before all sessions get it")
    promote.add_argument("session", metavar="SESSION")
    promote.add_argument("name", metavar="NAME", help="the file /workspace/skills/NAME.py")
    promote.add_argument("--yes", action="store_true", help="do not ask")
    promote.set_defaults(action="promote")
    remove = actions.add_parser("remove", help="remove one from all sessions")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(action="remove")
    for each in actions.choices.values():
        each.add_argument("--principal", default="local", help="owner; default: local, the user of the server on stdio")
        _add_files(each)
        each.set_defaults(run=_skills)


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--folder", type=_named, metavar="PATH", help="a folder that code may read and write; created if missing"
    )


def _with_hyphens(client: str) -> str:
    return client.replace("_", "-")  # as `upstreams` and the settings write it


def _named(path: str) -> str:
    """An empty path would be the working directory: what a shell makes of a variable that is not set."""
    if not path.strip():
        raise argparse.ArgumentTypeError("is empty")
    return path


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="mcp.toml")
    command.add_argument("--policy", type=Path, metavar="FILE", help="policy.toml")


def _load(config: Path | None, policy: Path | None = None, **options: Any) -> "Settings":
    from kernelmcp.config.load import load

    return load(config, policy, **options)


def _settings(parsed: argparse.Namespace) -> "Settings":
    overrides: dict[str, dict[str, Any]] = {}
    if parsed.log_level:
        overrides["logging"] = {"level": parsed.log_level}
    # 0 is a valid port, and differs from None.
    named = {key: getattr(parsed, key, None) for key in ("host", "port", "insecure")}
    http: dict[str, Any] = {key: value for key, value in named.items() if value is not None and value is not False}
    if http and parsed.transport == "stdio":
        raise ConfigurationError(f"--{next(iter(http))} is for HTTP, and --transport is stdio", "Omit one of the two.")
    parsed.transport = parsed.transport or ("http" if http else "stdio")
    if parsed.transport == "sse":
        http["sse"] = True
    if http:
        overrides["transport_http"] = http
    if parsed.folder is not None:
        # A path with ~ that no shell has expanded stays unchanged: the setting accepts ~.
        folder = parsed.folder if parsed.folder.startswith("~") else os.path.abspath(parsed.folder)
        overrides["volumes"] = {"default_volume": folder}
    settings = _load(parsed.config, parsed.policy, overrides=overrides)
    if parsed.folder is not None:
        from kernelmcp.files.volumes import make_shared_folder

        make_shared_folder(settings)
    return settings


def _serve(parsed: argparse.Namespace) -> int:
    pause_garbage_collector()  # the server resumes it after all imports
    try:
        return _serve_with(_settings(parsed), parsed)
    finally:
        resume_garbage_collector()


def _serve_with(settings: "Settings", parsed: argparse.Namespace) -> int:
    if parsed.transport == "stdio" and not settings.config.transport_stdio.enabled:
        raise ConfigurationError("transport_stdio.enabled is false", "Set it to true to serve over stdio.")
    if parsed.transport == "stdio" and (sys.stdin is None or sys.stdout is None):
        raise ConfigurationError(
            "stdin or stdout is closed, but MCP clients use them",
            "Start it from an MCP client, or serve over HTTP: kernelmcp serve --transport http.",
        )
    from kernelmcp import server
    from kernelmcp.observability import logging_setup

    logging_setup.configure(settings)
    if parsed.transport == "stdio" and sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(AT_A_TERMINAL)
    return server.serve_stdio(settings) if parsed.transport == "stdio" else server.serve_http(settings)


def _demo(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import demo

    return demo.main(parsed.output, parsed.kernelspec)


def _doctor(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import doctor

    return doctor.main(parsed.config, parsed.policy, as_json=parsed.json)


def _install(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands.install import configure

    return configure.main(
        parsed.client,
        dry_run=parsed.dry_run,
        folder=parsed.folder,
        uninstall=parsed.uninstall,
        scope=parsed.scope,
    )


def _setup(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import setup

    settings = _load(parsed.config, parsed.policy)
    return setup.main(settings, parsed.names, parsed.offline, parsed.export, remove=parsed.remove, yes=parsed.yes)


def _audit(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import audit_report

    return audit_report.main(_load(parsed.config, parsed.policy), parsed.since, as_json=parsed.json)


def _lab(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import lab

    return lab.main(_load(parsed.config, parsed.policy), port=parsed.port, open_browser=not parsed.no_browser)


def _build_wheel(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import build_wheel

    return build_wheel.main(parsed.path, _load(parsed.config).home)


def _upstreams(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands.upstreams import import_client, login, server_table, try_one

    settings = _load(parsed.config, parsed.policy)
    match parsed.action:
        case "list":
            return server_table.main(settings)
        case "try":
            return try_one.main(settings, parsed.name, accept=parsed.accept)
        case "login":
            return login.main(settings, parsed.name, open_browser=not parsed.no_browser)
        case _:
            return import_client.main(settings, parsed.client, dry_run=parsed.dry_run)


def _skills(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import skills

    settings = _load(parsed.config, parsed.policy)
    if parsed.action == "promote":
        return skills.promote(settings, parsed.session, parsed.name, parsed.principal, yes=parsed.yes)
    if parsed.action == "remove":
        return skills.remove(settings, parsed.name, parsed.principal)
    return skills.list_skills(settings, parsed.principal)


def _replay(parsed: argparse.Namespace) -> int:
    from kernelmcp.commands import replay_notebook

    return replay_notebook.main(parsed.notebook, parsed.session, parsed.config, parsed.policy)
