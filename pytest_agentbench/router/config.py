"""The settings of the router's process, one line of JSON."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from pytest_agentbench.lib.config import PositiveSeconds, Spec, matching, validate
from pytest_agentbench.router.constants import Constants, make_constants

WHERE = "router config"

EngineUrl = Annotated[str, matching(r"^https?://[^\s/,]+$", "the URL of an engine without a path, such as http://127.0.0.1:8001")]


def _are_different(urls: list[str]) -> list[str]:
    if repeated := [url for index, url in enumerate(urls) if url in urls[:index]]:
        raise ValueError(f"{repeated[0]} is there twice; name each engine once")
    return urls


def _split(urls: Any) -> Any:
    return [part.strip() for part in urls.split(",")] if isinstance(urls, str) else urls


class RuleConfig(Spec):
    """The settings of a process that decides where calls go."""

    host: str = Field(default="127.0.0.1", description="Address on which the router listens.")
    port: int = Field(default=0, ge=0, le=65535, description="Port on which the router listens. With 0, a free one is selected.")
    preset: str = Field(default="sticky", description="Constants of the routing rule: `nat` or `sticky`.")
    constants: dict[str, Any] = Field(default={}, description="Constants that differ from the preset.")
    seed: int = Field(default=0, ge=0, description="Seed of the random numbers.")
    decisions: str | None = Field(default=None, description="File to which a line of JSON is appended for each decision.")
    total_requests: PositiveInt = Field(default=10, description="Calls that are expected of a session that does not say how many it has.")

    def rule(self) -> Constants:
        """Returns the constants of the routing rule. Raises ConfigError."""
        return make_constants(self.preset, self.constants, WHERE)


class RouterConfig(RuleConfig):
    """The settings of a router before engines."""

    engines: Annotated[list[EngineUrl], AfterValidator(_are_different), BeforeValidator(_split, json_schema_input_type=list[str] | str)] = (
        Field(min_length=1, description="The URLs of the engines without a path, as a list or as a text with commas.")
    )
    metrics_interval: PositiveSeconds = Field(default=0.5, description="Time between two requests for the metrics of an engine.")


Config = TypeVar("Config", bound=RuleConfig)


def parse_config(data: Any, kind: type[Config]) -> Config:
    """Validates the settings of one kind of process. Raises ConfigError."""
    config = validate(kind, data, WHERE)
    config.rule()
    return config
