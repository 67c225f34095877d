"""The agent `terminal` as an external agent of Harbor: it calls the model in this process, and its commands run in Harbor's environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from harbor.agents.base import BaseAgent

from pytest_agentbench.agents.factory import make_agent, sampling_of
from pytest_agentbench.errors import ConfigError, LimitReached
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Json
from pytest_agentbench.sandbox.harbor_sandbox import HarborSandbox
from pytest_agentbench.suites.folder import AgentConfig, read_agent_config
from pytest_agentbench.suites.suite import Scenario, Task
from pytest_agentbench.tools.toolbox import Toolbox

#: Arguments that Harbor itself passes to an agent. All others are options of the user (`--ak name=value`).
HARBOR_ARGUMENTS = (
    *("logger", "mcp_servers", "skills_dir", "extra_env", "load_trajectory", "environment_logs_dir", "override_setup_timeout_sec"),
    *("environment_mounted",),
)

#: Prefixes of a model's name that only name the API of its server.
PROVIDERS = ("openai", "hosted_vllm")

#: Environment variables, set with `--ae` or in Harbor's own process. The first one that is set counts.
URL, KEY = ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY"

TRANSCRIPT = "transcript.json"  # File name in Harbor's folder for the agent's logs


class Agent(BaseAgent):  # type: ignore[misc]  # Harbor is not always installed
    """The agent `terminal` for `harbor run -a pytest_agentbench.harbor:Agent`. Harbor makes one for each trial of a task.

    Its options are those of `terminal`, sampling parameters, `api_base` and `config`.
    """

    def __init__(
        self, logs_dir: Path, model_name: str | None = None, *, api_base: str | None = None, config: str | None = None, **options: Any
    ) -> None:
        """Creates the agent.

        Args:
            logs_dir: Harbor's folder for the agent's logs.
            model_name: The model, with or without a provider's prefix.
            api_base: URL of the model's server.
            config: Path of an agent_config.json or a config.yaml. Other options override the file.
            options: Options of the agent, and arguments that Harbor passes.

        Raises:
            ConfigError: An option is unknown, or model or URL is missing.
        """
        super().__init__(logs_dir, model_name, **{name: options.pop(name) for name in HARBOR_ARGUMENTS if name in options})
        read = AgentConfig(Path(), {}, "", ()) if config is None else read_agent_config(Path(config))
        if read.note:
            self.logger.warning(read.note)
        settings = {"kind": "terminal", **read.settings, **options}
        model = settings.pop("model", None)
        self._agent = make_agent(settings, Path())
        self._sampling = sampling_of(settings)
        self._url = _url(api_base or read.api_base or self._get_env(*URL))
        self._model = _model(model_name or model)

    @staticmethod
    def name() -> str:
        return "agentbench-terminal"

    def version(self) -> str:
        return version("pytest-agentbench")

    async def setup(self, environment: Any) -> None:
        """Does nothing: the agent runs outside of the environment, so nothing has to be installed there."""

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        """Works on the task until the model says it is done or a limit is reached. `context.metadata["limit"]` names the limit, if any.

        Commands run as the user that Harbor has chosen. Raises AgentError and InfraError, which Harbor records.
        """
        tools = Toolbox((), HarborSandbox(environment, f"harbor:{environment.type()}"))
        scenario = Scenario(environment.session_id, ({"role": "user", "content": instruction},), task=Task(folder="", digest=""))
        key = self._get_env(KEY)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limit = ""
        async with aiohttp.ClientSession(headers=headers) as session:
            llm = CountedLLM(self._url, self._model, self._sampling, session, context)
            try:
                await self._agent.run(scenario, llm, tools)
            except LimitReached as reached:
                limit = str(reached)
            finally:
                context.metadata = {"calls": llm.calls, "commands": len(tools.calls), "limit": limit}
                (self.logs_dir / TRANSCRIPT).write_text(json.dumps(llm.transcript, indent=1, ensure_ascii=False), encoding="utf-8")


class CountedLLM(LLM):
    """A model client that adds the tokens of each call to Harbor's record at once, so that the record of a stopped agent is complete."""

    def __init__(self, url: str, model: str, sampling: Json, session: aiohttp.ClientSession, context: Any) -> None:
        """Creates the client. `context` is Harbor's AgentContext, to which the tokens are added."""
        super().__init__(url, model, sampling, session)
        self.calls = 0
        self._context = context

    async def chat(self, messages: Sequence[Json], tools: Sequence[Json] = (), **overrides: Any) -> Reply:
        reply = await super().chat(messages, tools, **overrides)
        self.calls += 1
        context, usage = self._context, reply.usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        context.n_input_tokens = (context.n_input_tokens or 0) + (usage.get("prompt_tokens") or 0)
        context.n_output_tokens = (context.n_output_tokens or 0) + (usage.get("completion_tokens") or 0)
        context.n_cache_tokens = (context.n_cache_tokens or 0) + cached
        return reply


def _url(url: str | None) -> str:
    if url is None or not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the endpoint must be a URL such as http://127.0.0.1:8000/v1, not {url!r}; set it with --ak api_base=URL or {URL[0]}"
        )
    return url.rstrip("/")


def _model(name: str | None) -> str:
    """Returns the model's name on the server: `NAME` for `openai/NAME`. Names without a known provider (`Qwen/Qwen3-8B`) stay unchanged."""
    if not name:
        raise ConfigError("no model was given; name it with -m openai/NAME, with NAME as the server lists it")
    provider, _, rest = name.partition("/")
    return rest if provider in PROVIDERS and rest else name
