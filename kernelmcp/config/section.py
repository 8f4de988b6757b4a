"""What every table of settings is made of. Above: config, config_http, policy. Below: nothing."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
