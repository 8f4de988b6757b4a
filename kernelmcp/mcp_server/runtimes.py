"""The languages a session can run: the rows in the metadata of the configured kernelspec.

A kernelspec may be anybody's: rows that are not as ours are as if they were not there.
"""

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument
from kernelmcp.kernel.process import find_kernelspec
from kernelmcp.mcp_server.schemas import RuntimeInfo
from kernelmcp.sessions.storage.record import MAIN_LANGUAGE

CONTRACT_NAMES = (MAIN_LANGUAGE, "javascript", "shell")
NOT_YET = "not available in this version"
_Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class Row(BaseModel):
    """A language as the kernelspec offers it. All but the main one, which comes first, have a magic."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: _Word
    version: str | None = None
    description: str = ""
    magics: tuple[_Word, ...] = ()
    importable_packages: Annotated[int, Field(ge=0)] = 0
    """How many packages an `import` installs when they are missing; of the main language, 0 where none."""


_ROWS = TypeAdapter(Annotated[list[Row], Field(min_length=1)])


class Runtimes:
    """The languages of one server. The kernelspec is looked up once, and again for `list_runtimes`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rows = self._read() or [Row(name=MAIN_LANGUAGE)]

    def describe(self) -> list[RuntimeInfo]:
        """What list_runtimes shows: the rows, and what the contract names beside them. Blocking."""
        found = [self._describe(row) for row in self._read()]
        if not found:
            found = [_unavailable(MAIN_LANGUAGE, "no such kernelspec is installed")]
        names = {runtime["name"] for runtime in found}
        return found + [_unavailable(name, NOT_YET) for name in CONTRACT_NAMES if name not in names]

    @property
    def about_imports(self) -> str:
        """What an `import` brings, in a sentence; empty where that is nothing that is known."""
        packages = self._settings.config.packages
        count = self._rows[0].importable_packages
        if not (count and packages.enabled and packages.auto_install and packages.allowed is None):
            return ""
        own = packages.pyodide_url is not None and "://" not in packages.pyodide_url  # may have a list of its own
        known = "packages of Pyodide's distribution" if own else f"any of {count} packages"
        return f"import installs {known} when missing (numpy, pandas, ...); %pip list --available names them."

    def _describe(self, row: Row) -> RuntimeInfo:
        about = f"{row.description}. {self.about_imports}" if row.importable_packages else row.description
        return {"name": row.name, "version": row.version, "description": about.rstrip(". "), "available": True}

    @property
    def names(self) -> list[str]:
        """As `language` takes them."""
        return [row.name for row in self._rows]

    def check(self, language: str | None) -> None:
        """Raises InvalidArgument for a language that cannot be run. None is whatever the session's is."""
        if language is not None and language not in self.names:
            quoted = " or ".join(f'"{name}"' for name in self.names)
            raise InvalidArgument(
                f"language {language!r} is not available in this version of kernelmcp",
                f"Use language {quoted}.",
                argument="language",
            )

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
        magic = next(row.magics[0] for row in self._rows if row.name == language)
        return f"%%{magic}\n{code}"

    def _read(self) -> list[Row]:
        """Empty where there is no such kernelspec."""
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
