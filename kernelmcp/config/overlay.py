"""Merges layers of settings, using pydantic-settings. A separate module because that import takes 60 ms, which a server
with default settings need not spend before its first kernel starts."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from kernelmcp.config.models import Values

Key = tuple[str, ...]
"""The target of a value: ("config", section, key) or ("policy", key), and deeper."""
Layer = Mapping[Key, Any]


def overlay(*layers: Layer) -> Values:
    """The first layer overrides the second, and so on. Raises pydantic's `ValidationError`."""

    class Layers(BaseSettings):
        config: dict[str, Any] = {}
        policy: dict[str, Any] = {}

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, layer) for layer in layers)

    found = Layers()
    return Values.model_validate({"config": found.config, "policy": found.policy})


class _LayerSource(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("a layer is read as a whole")

    def __call__(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for key, value in self._layer.items():
            branch: Any = tree
            for part in key[:-1]:
                branch = cast("dict[str, Any]", branch).setdefault(part, {})
                if not isinstance(branch, dict):
                    break  # a plain value instead of a table: validation reports it
            else:
                cast("dict[str, Any]", branch)[key[-1]] = value
        return tree
