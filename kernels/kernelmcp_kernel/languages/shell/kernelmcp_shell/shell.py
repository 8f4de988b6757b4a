"""The only module that uses bashkit: a shell with its state, running scripts, and its limits in plain words."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from kernelmcp_shell import direct
from kernelmcp_shell.builtin_interface import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bashkit import Bash, BashError, BuiltinContext, BuiltinResult, ExecutionProfile, FileSystem

    from kernelmcp_shell.builtin_interface import Command
else:  # the extension module itself, whose folder is on the path: a shell sees no other of the installation's
    from _bashkit import Bash, BashError, BuiltinResult, ExecutionProfile, FileSystem

MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""bashkit's limit: output beyond it is dropped."""

EXIT_INTERRUPTED = 130
EXIT_SYNTAX = 2
EXIT_LIMIT = 1

# Commands that bashkit lacks, or cannot interrupt: its `sleep` checks nothing until it ends.
_PRELUDE = r"""
sleep() (
  { set +x; } 2> /dev/null
  naps=$(kernelmcp-naps "$@") || exit 1
  left=${naps% *}
  while ((left-- > 0)); do command sleep 0.1; done
  command sleep "${naps#* }"
)
exec 61>&1 62>&2
tar() {
  local status=0
  kernelmcp-tar "$@" < /dev/null || status=$?
  ((status == 125)) || return $status
  command tar "$@"
}
gzip() {
  local status=0
  kernelmcp-gunzip "$@" < /dev/null || status=$?
  ((status == 125)) || return $status
  command gzip "$@"
}
find() (
  { set +x; } 2> /dev/null
  for word in "$@"; do
    case $word in
      '') echo "find: '': No such file or directory" >&2; exit 1 ;;
      -[HLP]) ;;
      [-\(!]*) break ;;
    esac
  done
  command find "$@"
)
zcat() { gzip -dc "$@"; }
gunzip() { gzip -d "$@"; }
which() {
  local name missing=0
  [ "${1-}" = -a ] && shift
  for name in "$@"; do command -v "$name" || missing=1; done
  return $missing
}
"""

_OURS = {"sleep"}  # the prelude's functions that direct.py knows

# Undoes redirections of a cell's own streams (`exec > file`), which should not affect the next cell.
_STREAMS_BACK = "exec 1>&61 2>&62"
_MAY_REDIRECT = re.compile(r"exec|source|eval|(?<!\S)\.\s")

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SUBSTITUTION = re.compile(r"\$\((?!\()|[<>]\(|`[^`]*`")
# Places where bashkit runs commands that its analysis does not name, and a PATH by which any name may be a script.
_NOT_ANALYZED = re.compile(r"@P\}|\bPS4\b|\(\([^)]*\$\(|(?<![$\w])(?<!\$\{)PATH\b|\bPATH:?=")

# Of an arithmetic command, bashkit drops the quotes of a substitution, so that `(( $(echo "2 > 1" | bc) ))` writes a
# file. After `exec > >(tee log)`, all output is lost. What is quoted, a comment or a here-document is only text.
_PLAIN = r"""[^()"'\\] | \\. | "(?:[^"\\]|\\.)*+" | '[^']*+'"""
_INSIDE = rf"(?: {_PLAIN} | \((?: {_PLAIN} | \((?: {_PLAIN} | \((?: {_PLAIN} )*+\) )*+\) )*+\) )*+"
_PIECES = re.compile(
    rf"""\\. | \$?'(?:(?<=\$')(?:[^'\\]|\\.)*+ | (?<!\$')[^']*+)' | "(?:[^"\\]|\\.)*+" | (?<!\S)\#[^\n]*+
    | (?<!<)<<(?P<tabs>-?)(?!<)[ ]*(?P<end>(?: [^\s"'\\;&|<>()] | \\. | '[^'\n]*' | "[^"\n]*" )++) | (?P<line>\n)
    | (?P<exec> (?: (?<![^\n;&|(){{]) | \b(?<=then|else)\s | \b(?<=do)\s ) [ \t]* exec[ \t]
      (?: [^\n;|&()"'] | (?<=[<>])& ){{0,200}}? (?<![\d}}&>]) [12&]? >[>&|]? [ \t]* >\( )
    | \bfor\s*\(\( | \$\(\({_INSIDE}\)\) | \$\(\( | (?<!\()\(\((?P<inside>{_INSIDE})\)\)""",
    re.VERBOSE | re.DOTALL,
)
_SUBSTITUTES_QUOTED = re.compile(r"""(?=.*(?:\$\(|`)).*["']""", re.DOTALL)
_MOST_CHARS_TO_REWRITE = 64 * 1024
_EXEC_REFUSED = "exec with >(...) would lose the output that follows: use { ...; } 2>&1 | tee FILE"

# Programs of Python that are modules here, and two that no WebAssembly has. bashkit would name commands like `flock`.
_OF_PYTHON = {
    **{name: f"pip install {name}, then python -m {name}" for name in ("black", "flake8", "mypy", "pylint")},
    "ruff": "it does not run here: pip install flake8 black, then python -m flake8 or python -m black",
    "uv": "use pip",
}
_MISSING = re.compile(
    rf"^(bash: line \d+: ({'|'.join(_OF_PYTHON)}): command not found)(?:\. Did you mean: .*)?$", re.MULTILINE
)

_BUDGETS = (
    ("live intermediate bytes", "a pipe, a variable or a command can hold at most 32 MB at a time"),
    ("aggregate input bytes", "the commands of a cell can read at most 100 MB together"),
    ("work units", "the cell has reached the limit of work for one cell"),
    ("parser fuel", "the cell has more lines than one cell may have"),
    ("estimated command count", "the cell has run more commands than one cell may"),
)
_REMEDY = ": use Python for it, or take it in parts"


class Outcome(NamedTuple):
    """`problem`: the reason if the shell itself ended the script. `cut`: output was dropped."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    problem: str
    interrupted: bool
    cut: bool


class Shell:
    """One bash. For one thread; `interrupt` may be called from any thread."""

    def __init__(
        self,
        filesystem: object,
        commands: Mapping[str, Command],
        environment: Mapping[str, str],
        cwd: str,
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._is_interrupted = is_interrupted
        self._bash = Bash(
            username="user",
            hostname="sandbox",
            cwd=cwd,
            env=dict(environment),
            max_memory=1 << 20,  # for files outside all folders; there are none
            profile=ExecutionProfile.Interactive,
            custom_builtins={name: _as_builtin(command) for name, command in commands.items()},
        )
        self._bash.mount("/", FileSystem.from_capsule(filesystem))
        self._may_redirect = False
        """A script may have redirected the shell's own streams, or defined a function that does."""
        self._lock = threading.Lock()
        self._running = False
        self.output_of_programs: str | None = None
        """How the running script's programs write straight to the cell (direct.py)."""
        self._redefined: bool | None = True
        """Known command names have been redefined; None: unknown, since a script may have done so."""
        self.run(_PRELUDE, lambda name, text: None)

    def set_environment(self, variables: Mapping[str, str | None]) -> None:
        """Set and export these variables; None: unset it."""
        for name, value in variables.items():
            if value is not None:
                self._bash.set_env(name, value)
        if gone := [name for name, value in variables.items() if value is None and _NAME.fullmatch(name)]:
            self._bash.execute_sync(f"unset -v {' '.join(gone)}")

    def interrupt(self) -> None:
        """End the running script at its next command."""
        with self._lock:
            if self._running:
                self._bash.cancel()

    def run(self, code: str, write: Callable[[str, str], None], *, in_cell: bool = False) -> Outcome:
        """Run a script. `write` gets the name of a stream and its output. `in_cell`: the output is the cell's."""
        if self._may_redirect:
            self._bash.execute_sync(_STREAMS_BACK)  # on its own: of a script with a syntax error, nothing runs
        output = direct.output_of_programs(code)
        self.output_of_programs = output if output and in_cell and not self._has_redefined() else None
        if output is None:
            self._redefined = None

        def on_output(stdout: str, stderr: str) -> None:
            if stdout:
                write("stdout", stdout)
            if stderr:
                write("stderr", _with_advice(stderr))

        script = _quotes_kept(code)
        if script is None:
            write("stderr", f"bash: {_EXEC_REFUSED}\n")
            return Outcome(EXIT_SYNTAX, b"", b"", _EXEC_REFUSED, interrupted=False, cut=False)
        with self._lock:
            self._running = True
            if self._is_interrupted():
                self._bash.cancel()
        try:
            found: Any = self._bash.execute_sync(script, on_output=on_output)
        finally:
            with self._lock:
                self._running = False
                self._bash.clear_cancel()
        self._may_redirect = self._may_redirect or _MAY_REDIRECT.search(code) is not None
        exit_code, problem = (found.exit_code, "") if found.error is None else _explained(found.error)
        interrupted = self._is_interrupted() and found.error is not None
        if problem and not interrupted:
            write("stderr", f"bash: {problem}\n")
        return Outcome(
            EXIT_INTERRUPTED if interrupted else exit_code,
            found.stdout_bytes,
            _with_advice(found.stderr_bytes.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
            problem,
            interrupted=interrupted,
            cut=found.stdout_truncated or found.stderr_truncated,
        )

    def commands(self, code: str) -> tuple[list[list[str | None]], bool]:
        """The commands that a script names, as their words: None is one that it computes. And whether these are all
        that it can run: not if it has an `eval`, a computed name, or an error."""
        try:
            found = self._bash.analyze(code)
        except BashError:
            return [], False
        seen = sum(each.context != "direct" for each in found.commands)  # those of substitutions, and of functions
        hides = len(_SUBSTITUTION.findall(code)) > seen or _NOT_ANALYZED.search(code)
        is_all = not found.is_opaque and not hides
        return [[each.name, *each.args] for each in found.commands if each.name is not None], is_all

    def _has_redefined(self) -> bool:
        if self._redefined is None:
            found: Any = self._bash.execute_sync("declare -F")
            functions = {line.rpartition(" ")[2] for line in found.stdout.splitlines()}
            aliases = set(self._bash.shell_state().aliases)
            self._redefined = not direct.KNOWN.isdisjoint((functions - _OURS) | aliases)
        return self._redefined


def _quotes_kept(code: str) -> str | None:
    """A script, with `{ let "..."; }` in place of the `((...))` that would lose quotes. None: it is refused."""
    if len(code) > _MOST_CHARS_TO_REWRITE or ("((" not in code and "exec" not in code):
        return code
    pieces: list[str] = []
    texts: list[
        tuple[str, str]
    ] = []  # here-documents that begin with the next line: their end, and if it may follow tabs
    at = done = 0
    while found := _PIECES.search(code, at):
        at = found.end()
        if found["exec"]:
            return None
        if found["end"]:
            texts.append((re.sub(r"[\"'\\\\]", "", found["end"]), found["tabs"]))
        elif found["line"]:
            for end, tabs in texts:
                at = _behind(code, at, end, tabs)
            texts.clear()
        elif found["inside"] and _SUBSTITUTES_QUOTED.match(found["inside"]):
            pieces += [code[done : found.start()], f' {{ let "{found["inside"]}"; }}']
            done = at
    return "".join([*pieces, code[done:]])


def _behind(code: str, at: int, end: str, tabs: str) -> int:
    """Where a here-document has ended that begins there."""
    line = None
    while at < len(code) and line != end:
        stop = code.find("\n", at) % (len(code) + 1)  # without one, at the end
        line = code[at:stop].lstrip("\t") if tabs else code[at:stop]
        at = min(stop + 1, len(code))
    return at


def _with_advice(stderr: str) -> str:
    return _MISSING.sub(lambda found: f"{found[1]}: {_OF_PYTHON[found[2]]}", stderr)


def _as_builtin(command: Command) -> Callable[[BuiltinContext], BuiltinResult]:
    def run(context: BuiltinContext) -> BuiltinResult:
        def descriptor(path: str) -> bytes:
            return context.fs.read_file(path)

        result = command(Call(context.name, context.argv, context.stdin, context.cwd, context.env, descriptor))
        return BuiltinResult(result.stdout, result.stderr, result.exit_code)

    return run


def _explained(error: str) -> tuple[int, str]:
    """An exit status and one sentence for the error with which bashkit ends a script."""
    for name, meaning in _BUDGETS:
        if name in error:
            return EXIT_LIMIT, meaning + _REMEDY
    if error.startswith("parse error"):
        return EXIT_SYNTAX, error.removeprefix("parse error at ")
    if "function depth" in error:
        depth = re.search(r"\((\d+)\)", error)
        return EXIT_LIMIT, f"functions can call each other {depth[1] if depth else 'a few'} levels deep, and no deeper"
    if "variable byte limit" in error:
        return EXIT_LIMIT, "all variables together can hold at most 10 MB: `unset` some, or use Python for it"
    for prefix in ("resource limit exceeded: ", "execution error: ", "budget validation failed: ", "io error: "):
        error = error.removeprefix(prefix)
    return EXIT_LIMIT, error
