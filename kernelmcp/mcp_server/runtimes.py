"""The languages a session can run: the rows in the metadata of the configured kernelspec.

Anyone may write a kernelspec: if its rows are not in our format, they are ignored.
"""

from typing import Annotated, Any, cast

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.handler_call import PYTHON, HandlerCall
from kernelmcp.kernel.kernelspecs import find_kernelspec
from kernelmcp.mcp_server.schemas import RuntimeInfo
from kernelmcp.sessions.storage.record import MAIN_LANGUAGE

SHELL = "shell"
CONTRACT_NAMES = (MAIN_LANGUAGE, "javascript", SHELL)
INTRODUCTION = """\
The languages of a session share its folder /workspace and its queue; variables are each language's own."""
NOT_YET = "not offered by this server's kernel"
RESOURCE = "kernelmcp://runtimes"
_Text = Annotated[str, Field(max_length=1000)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class Row(BaseModel):
    """A language that the kernelspec offers. All but the main one, which comes first, have a magic."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: _Word
    version: str | None = None
    description: str = ""
    magics: tuple[_Word, ...] = ()
    importable_packages: Annotated[int, Field(ge=0)] = 0
    """Number of packages that an `import` installs if they are missing; for the main language, 0 if there are none."""
    about: _Text = ""
    """A description for a model: features and limits."""
    example: _Text = ""
    """An example cell."""
    handler: str | None = None
    """The expression that calls a cell's `handler`, with {event} and {context} in it (executions/handler_call.py)."""


_ROWS = TypeAdapter(Annotated[list[Row], Field(min_length=1)])


class Runtimes:
    """The languages of one server. The kernelspec is looked up once, and again for `list_runtimes`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rows = self._read() or [Row(name=MAIN_LANGUAGE)]

    def describe(self) -> list[RuntimeInfo]:
        """The result of list_runtimes: the rows, and the fields of the contract. Blocking."""
        found = [self._describe(row) for row in self._read()]
        if not found:
            found = [_unavailable(MAIN_LANGUAGE, "no such kernelspec is installed")]
        names = {runtime["name"] for runtime in found}
        return found + [_unavailable(name, NOT_YET) for name in CONTRACT_NAMES if name not in names]

    @property
    def about_imports(self) -> str:
        """A sentence about packages that an `import` installs; empty if none are known."""
        packages = self._settings.config.packages
        count = self._rows[0].importable_packages
        if not (count and packages.enabled and packages.auto_install and packages.allowed is None):
            return ""
        source = (packages.pyodide_url or "").removeprefix("file://")
        own = source and "://" not in source  # a folder may have a list of its own
        known = "packages of Pyodide's distribution" if own else f"any of {count} packages"
        return f"import installs {known} when missing (numpy, pandas, ...); %pip list --available names them."

    def _describe(self, row: Row) -> RuntimeInfo:
        about = f"{row.description}. {self.about_imports}" if row.importable_packages else row.description
        about = about.rstrip(". ")
        found: RuntimeInfo = {"name": row.name, "version": row.version, "description": about, "available": True}
        return {**found, "example": row.example} if row.example else found

    def guide(self) -> str:
        """The description of the languages for a model, in Markdown."""
        parts = [
            f"## {row.name} ({row.description})\n\n{row.about}\n\n```{row.name}\n{row.example}\n```"
            for row in self._rows
            if row.about
        ]
        return "\n\n".join([INTRODUCTION, *parts]) + "\n"

    def register(self, server: MCPServer[Any]) -> None:
        """Register the guide."""
        server.resource(
            RESOURCE,
            name="runtimes",
            title="Languages of a session",
            mime_type="text/markdown",
            description="Abilities and limits of each language of execute_code.",
        )(self.guide)

    @property
    def names(self) -> list[str]:
        """The valid values of `language`."""
        return [row.name for row in self._rows]

    def check(self, language: str | None) -> None:
        """Raises InvalidArgument for a language that cannot be run. None is the session's own."""
        if language is not None and language not in self.names:
            meant = [row.name for row in self._rows if language.lower() in (row.name, *row.magics)]
            quoted = " or ".join(f'"{name}"' for name in meant or self.names)
            raise InvalidArgument(
                f"this server has no language {language!r}",
                f"Use language {quoted}.",
                argument="language",
            )

    def handler_call(self, language: str, event: dict[str, Any]) -> HandlerCall:
        """The call of a cell's handler in that language. Raises InvalidArgument."""
        template = next((row.handler for row in self._rows if row.name == language), None)
        if template is None and language == MAIN_LANGUAGE:
            template = PYTHON
        if template is None:
            raise InvalidArgument(
                f"event calls a function named handler, and {language} has none", "Omit event.", argument="event"
            )
        return HandlerCall(event, template)

    def named_in(self, code: str) -> str | None:
        """The language that a cell's own magic names."""
        start = len(code) - len(code.lstrip())
        if not code.startswith("%%", start):
            return None
        magic = code[start + 2 :].partition("\n")[0].rstrip().partition(" ")[0]
        return next((row.name for row in self._rows if magic in row.magics), None)

    def as_cell(self, language: str, code: str) -> str:
        """Code as a cell of the kernel: in any language but the main one it begins with that language's magic, so that
        it means the same in a notebook. Raises InvalidArgument."""
        self.check(language)
        if language == MAIN_LANGUAGE or self.named_in(code) is not None:
            return code
        return self._below_magic(language, code)

    @property
    def has_shell(self) -> bool:
        return SHELL in self.names

    def as_command(self, command: str) -> str:
        """A shell command as a cell of the kernel, whatever it begins with. Requires a shell."""
        return self._below_magic(SHELL, command)

    def _below_magic(self, language: str, code: str) -> str:
        magic = next(row.magics[0] for row in self._rows if row.name == language)
        return f"%%{magic}\n{code}"

    def _read(self) -> list[Row]:
        """The rows. Empty if there is no such kernelspec."""
        spec = find_kernelspec(self._settings.config.kernels.kernelspec)
        if spec is None:
            return []
        try:
            rows = _ROWS.validate_python(_languages_in(spec))
        except ValidationError:
            rows = [Row(name=MAIN_LANGUAGE, description=str(spec.get("display_name", "")))]
        return [row for row in rows if row.magics or row.name == MAIN_LANGUAGE]


def _languages_in(spec: dict[str, Any]) -> Any:
    metadata: Any = spec.get("metadata")
    ours: Any = cast("dict[str, Any]", metadata).get("kernelmcp") if isinstance(metadata, dict) else None
    return cast("dict[str, Any]", ours).get("languages") if isinstance(ours, dict) else None


def _unavailable(name: str, why: str) -> RuntimeInfo:
    return {"name": name, "version": None, "description": why, "available": False}
