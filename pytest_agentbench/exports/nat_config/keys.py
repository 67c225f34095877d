"""The keys of the NeMo Agent Toolkit's configurations: what each becomes here, or why it is not carried over.

KEYS is the only list of them. The conversion takes its reasons from it, and the table in docs/coming-from/nat-config.md is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class NatKey(NamedTuple):
    """A key of the toolkit's configuration. It has `becomes`, `reason` or both."""

    becomes: str = ""  # key of suite.yaml or backend.yaml, or another place; empty if the key is never carried over
    reason: str = ""  # why it is not carried over: always, or in the cases in which the conversion cannot use it


#: Reason for a key that is in no table.
UNKNOWN = "this importer does not know the key"

#: Reason for a key whose value is null.
NO_VALUE = "it has no value"

#: Reason for a component that no other component leads to, starting at the workflow.
UNUSED = "the workflow does not use it"

NO_SEARCH = "only `numeric` searches of keys of the agent's LLM that have a counterpart and values of their own are carried over"
LOGS = "only what the toolkit logs depends on it"
NO_NAMES = "agents have no names here"
MEASURED = "every run has this without a setting"
FAILED_CALLS = "calls are not repeated; a rollout with the status infra_error is run again"
STUBS = "the toolkit's own code does not run here; calls of the tool are recorded, and answered with samples"
AGENTS_KEY = "keys are not written to files; write the name of an environment variable to `api_key_env` of backend.yaml"
JUDGES_KEY = "keys are not written to files; `judge.api_key` of suite.yaml is the name of an environment variable"
HINTS_OFF = "hints are off without `enable_nvext_hints: true`"
JUDGES_REQUESTS = "requests to the judge have the temperature 0.0, and no other parameters"
AGENT_LEADERBOARD = "entries are read by the keys of the data format agent-leaderboard (docs/start/suites.md)"
OWN_DIRECTORY = "each session writes a directory of its own in `reports`; `--agentbench-reports` names another place"
ONE_SCORE = "a suite has each score once, and a question of `--input` has no labels"
EVALUATOR = "agentbench has no such scorer; docs/reference/scorers.md lists those that there are"

#: Name of a part of a configuration that has more than one form -> its title in the documentation. The others are called by `_type`.
TITLES: Mapping[str, str] = {
    "": "top level",
    "general": "`eval.general`",
    "dynamo": "`dynamo`, beside the keys of `openai`",
    "judge": "LLM of the judge (`evaluator_llm`)",
    "function": "functions that are tools",
    "evaluator": "other evaluators",
    "optimizer": "`optimizer`",
}

_REACT: Mapping[str, NatKey] = {
    "_type": NatKey("`agent.kind: react`"),
    "llm_name": NatKey("backend.yaml, which is made from that LLM"),
    "tool_names": NatKey("tools.json"),
    "system_prompt": NatKey("`agent.system_prompt`"),
    "additional_instructions": NatKey("`agent.additional_instructions`"),
    "max_tool_calls": NatKey("`agent.max_tool_calls`", "`max_tool_calls` is its newer name"),
    "max_iterations": NatKey("`agent.max_tool_calls`", "`max_tool_calls` is its newer name"),
    "max_history": NatKey("`agent.max_history`"),
    "parse_agent_response_max_retries": NatKey(
        "`agent.parse_agent_response_max_retries`, less one, because the toolkit counts the first answer too"
    ),
    "max_retries": NatKey("as `parse_agent_response_max_retries`", "`parse_agent_response_max_retries` is its newer name"),
    "retry_agent_response_parsing_errors": NatKey("`agent.retry_agent_response_parsing_errors`"),
    "retry_parsing_errors": NatKey(
        "`agent.retry_agent_response_parsing_errors`", "`retry_agent_response_parsing_errors` is its newer name"
    ),
    "raise_on_parsing_failure": NatKey("`agent.raise_on_parsing_failure`"),
    "include_tool_input_schema_in_tool_description": NatKey("`agent.include_tool_input_schema_in_tool_description`"),
    "normalize_tool_input_quotes": NatKey("`agent.normalize_tool_input_quotes`"),
    "pass_tool_call_errors_to_agent": NatKey("nothing if `true`, because it is always so", "agents always get the errors of their calls"),
    "use_native_tool_calling": NatKey("nothing if `false`, because it is so for `react`", "use `kind: tool_calling` for native tool calls"),
    "tool_call_max_retries": NatKey(reason="calls of tools are only recorded, so that none fails by chance"),
    "recursion_limit": NatKey(reason="the toolkit ignores it, too; `max_tool_calls` is the limit"),
    "verbose": NatKey(reason=LOGS),
    "log_response_max_chars": NatKey(reason=LOGS),
    "workflow_alias": NatKey(reason=NO_NAMES),
    "description": NatKey(reason=NO_NAMES),
}

_TOOL_CALLING: Mapping[str, NatKey] = {
    "_type": NatKey("`agent.kind: tool_calling`"),
    "llm_name": _REACT["llm_name"],
    "tool_names": _REACT["tool_names"],
    "system_prompt": NatKey("`agent.system_prompt`"),
    "additional_instructions": NatKey("the end of `agent.system_prompt`", "it needs a `system_prompt` that it can be added to"),
    "max_iterations": NatKey("`agent.max_turns`"),
    "truncation_retry": NatKey("`agent.truncation_retry`"),
    "max_empty_response_retries": NatKey("`agent.max_empty_response_retries`"),
    "handle_tool_errors": NatKey("nothing if `true`, because it is always so", "agents always get the errors of their calls"),
    "max_history": NatKey(reason="the agent gets all messages from before the question"),
    "return_direct": NatKey(reason="the result of a tool never ends a rollout; the model's answer does"),
    "verbose": NatKey(reason=LOGS),
    "workflow_alias": NatKey(reason=NO_NAMES),
    "description": NatKey(reason=NO_NAMES),
}

_ADK: Mapping[str, NatKey] = {
    "_type": NatKey("`agent.kind: tool_calling`, which also calls tools natively; Google's ADK itself does not run"),
    "llm": _REACT["llm_name"],
    "tool_names": _REACT["tool_names"],
    "prompt": NatKey("`agent.system_prompt`"),
    "name": NatKey(reason=NO_NAMES),
    "description": NatKey(reason=NO_NAMES),
}

_SELF_EVALUATING: Mapping[str, NatKey] = {
    "_type": NatKey("`agent.kind`: `self_evaluating`, or `self_evaluating_with_feedback`"),
    "wrapped_agent": NatKey("`agent.wraps`"),
    "evaluator_llm": NatKey("`judge` of suite.yaml; nothing if it is the LLM of the agent, because that is the default"),
    "max_retries": NatKey("`agent.max_retries`"),
    "min_confidence_threshold": NatKey("`agent.min_confidence_threshold`"),
    "pass_feedback_to_agent": NatKey("`agent.pass_feedback_to_agent`"),
    "feedback_template": NatKey("`agent.feedback_template`"),
    "evaluation_prompt_template": NatKey("`agent.evaluation_prompt_template`"),
    "verbose": NatKey(reason=LOGS),
    "description": NatKey(reason=NO_NAMES),
}

_OPENAI: Mapping[str, NatKey] = {
    "_type": NatKey("`kind: url` of backend.yaml"),
    "model_name": NatKey("`model` of backend.yaml; for `adk` without `openai/`, by which LiteLLM chooses its client"),
    "model": NatKey("`model` of backend.yaml", "`model_name` is its other name"),
    "base_url": NatKey("`url` of backend.yaml"),
    "api_key": NatKey("`api_key_env: NAME` of backend.yaml if it is `${NAME}`", AGENTS_KEY),
    "temperature": NatKey("`agent.temperature`"),
    "top_p": NatKey("`agent.top_p`"),
    "max_tokens": NatKey("`agent.max_tokens`"),
    "seed": NatKey("`agent.seed`"),
    "stop": NatKey("`agent.stop` of `react`", "the agent `tool_calling` sends no stop sequences"),
    "request_timeout": NatKey(reason="`timeout` of suite.yaml limits a whole rollout"),
    "max_retries": NatKey(reason=FAILED_CALLS),
    "num_retries": NatKey(reason=FAILED_CALLS),
    "optimizable_params": NatKey("`parameters` of space.yaml", NO_SEARCH),
    "search_space": NatKey("`parameters` of space.yaml, for sampling parameters and hints", NO_SEARCH),
}

_DYNAMO: Mapping[str, NatKey] = {
    **_OPENAI,
    "enable_nvext_hints": NatKey("`labels.kind: dynamo` of backend.yaml; nothing if `false`"),
    "nvext_prefix_id_template": NatKey("`labels.prefix`, with `{session}` for `{uuid}`", HINTS_OFF),
    "nvext_prefix_total_requests": NatKey("`labels.total_requests`", HINTS_OFF),
    "nvext_prefix_osl": NatKey("`labels.osl`: LOW, MEDIUM and HIGH are 128, 512 and 2048 tokens", HINTS_OFF),
    "nvext_prefix_iat": NatKey("`labels.iat`: LOW, MEDIUM and HIGH are 50, 250 and 750 ms", HINTS_OFF),
    "nvext_prediction_trie_path": NatKey(reason="`agentbench hints learn` makes a file for `labels.table` from a run"),
    "prediction_trie_path": NatKey(reason="`agentbench hints learn` makes a file for `labels.table` from a run"),
    "nvext_max_sensitivity": NatKey(reason="it is an older form of a priority; use `labels.priority` of backend.yaml"),
    "max_sensitivity": NatKey(reason="it is an older form of a priority; use `labels.priority` of backend.yaml"),
    "nvext_cache_pin_type": NatKey(reason="Dynamo refuses `cache_control` with HTTP 400"),
    "nvext_cache_control_mode": NatKey(reason="Dynamo refuses `cache_control` with HTTP 400"),
}

_JUDGE: Mapping[str, NatKey] = {
    **{key: NatKey(reason=each.reason or JUDGES_REQUESTS) for key, each in _DYNAMO.items()},
    **{key: NatKey(reason=JUDGES_REQUESTS) for key in ("temperature", "top_p", "max_tokens", "seed", "stop")},
    "_type": NatKey("nothing: all LLMs have the same API"),
    "model_name": NatKey("`judge.model` of suite.yaml, if the judge is not the LLM of the agent"),
    "model": NatKey("`judge.model` of suite.yaml, if the judge is not the LLM of the agent", "`model_name` is its other name"),
    "base_url": NatKey("`judge.url` of suite.yaml, if the judge is not the LLM of the agent"),
    "api_key": NatKey("`judge.api_key: NAME` of suite.yaml if it is `${NAME}`", JUDGES_KEY),
    "temperature": NatKey("nothing if 0.0, because it is always so", JUDGES_REQUESTS),
    **{key: NatKey(reason="`labels.roles.judge` of backend.yaml has hints for the judge") for key in _DYNAMO if "nvext_" in key},
}

#: Part of a configuration -> its keys. A part with a `_type` is called by that. A key of a mapping holds for all keys in it that are not
#: listed themselves.
KEYS: Mapping[str, Mapping[str, NatKey]] = MappingProxyType(
    {
        "react_agent": _REACT,
        "tool_calling_agent": _TOOL_CALLING,
        "adk": _ADK,
        "self_evaluating_agent": _SELF_EVALUATING,
        "self_evaluating_agent_with_feedback": _SELF_EVALUATING,
        "openai": _OPENAI,
        "dynamo": _DYNAMO,
        "judge": _JUDGE,
        "function": {
            "_type": NatKey("a tool in tools.json: `current_datetime` and `react_benchmark_agent`, others if `--tools` describes them"),
            "": NatKey(reason=STUBS),
        },
        "banking_tools_group": {
            "_type": NatKey("tools.json"),
            "tools_json_path": NatKey("tools.json, with the descriptions in that file", "`--tools` names another file"),
            "include": NatKey("tools.json, which has only these"),
            "exclude": NatKey("tools.json, which has all others"),
            "decision_only": NatKey("nothing if `true`, because calls are only recorded", "calls are always only recorded"),
        },
        "general": {
            "max_concurrency": NatKey("`--agentbench-concurrency` of the printed command"),
            "dataset._type": NatKey("data.json; `json` and `jsonl` are read", "other data are given: `--data` or `--input`"),
            "dataset.file_path": NatKey("data.json", "other data are given: `--data` or `--input`"),
            "dataset.structure.disable": NatKey(reason="with `true`, agents see the labels of an entry; here they never do"),
            "dataset.structure": NatKey(reason=AGENT_LEADERBOARD),
            "dataset.id_key": NatKey(reason=AGENT_LEADERBOARD),
            "dataset.filter": NatKey(reason="`--agentbench-limit`, `-k` and `agentbench subset` choose scenarios"),
            "output": NatKey(reason=OWN_DIRECTORY),
            "profiler": NatKey(reason=f"{MEASURED}: `agentbench export --as nat` writes the toolkit's files"),
            "profiler.prompt_caching_prefixes": NatKey(reason=f"{MEASURED}: `agentbench show --profile`"),
            "profiler.bottleneck_analysis": NatKey(reason=f"{MEASURED}: `agentbench show --profile`"),
            "profiler.concurrency_spike_analysis": NatKey(reason=f"{MEASURED}: `agentbench show --profile`"),
            "profiler.prediction_trie": NatKey(reason="`agentbench hints learn` learns hints from any run"),
            "profiler.dynamo_metrics": NatKey(reason="a session reads the servers itself, from the URLs in `metrics` of backend.yaml"),
        },
        "tsq_evaluator": {
            "_type": NatKey("the scorer `nat_compat`", ONE_SCORE),
            "tool_weight": NatKey("`nat_compat.tool_weight`", ONE_SCORE),
            "parameter_weight": NatKey("`nat_compat.parameter_weight`", ONE_SCORE),
            "strict_mode": NatKey("`nat_compat.strict_mode`", ONE_SCORE),
            "llm_name": NatKey(reason="`tsq_evaluator` asks no model, in the toolkit as here"),
            "verbose": NatKey(reason="the toolkit ignores it, too"),
        },
        "action_completion_evaluator": {
            "_type": NatKey("the scorer `nat_action_completion`", ONE_SCORE),
            "llm_name": NatKey(reason="the scorer `nat_action_completion` asks no model; `action_completion` asks a judge"),
            "strict_mode": NatKey(reason="the scorer `nat_action_completion` never asks a model, which is the strict mode"),
        },
        "avg_llm_latency": {"": NatKey(reason=f"{MEASURED}: the metric `e2e`")},
        "avg_workflow_runtime": {"": NatKey(reason=f"{MEASURED}: the metrics `rollout` and `seconds_per_rollout`")},
        "avg_num_llm_calls": {"": NatKey(reason=f"{MEASURED}: the report counts the calls")},
        "avg_tokens_per_llm_end": {"": NatKey(reason=f"{MEASURED}: the metric `tokens_per_rollout`, and the tokens of each call")},
        "evaluator": {"": NatKey(reason=EVALUATOR)},
        "optimizer": {
            "output_path": NatKey(reason="`agentbench optimize --output` names the directory of a study"),
            "reps_per_param_set": NatKey(reason="a trial runs each scenario once, beside the default settings"),
            "eval_metrics": NatKey(
                "`objectives` of space.yaml: `e2e.p50`, `rollout.p50`, `tokens`, or `quality` for the main score",
                "objectives have no weights, because a study shows its Pareto set; other metrics are no objectives",
            ),
            "numeric": NatKey(
                "space.yaml if `enabled`; `n_trials`, or the size of the grid, is `--trials` of the printed command",
                "`agentbench optimize` chooses the sampler by the size of the space",
            ),
            "prompt": NatKey(reason="no model writes prompts here; space.yaml can choose from `variants` of suite.yaml"),
        },
        "": {
            "general": NatKey(reason="it is about the toolkit's own server, logs and telemetry"),
            "functions": NatKey(reason=UNUSED),
            "function_groups": NatKey(reason=UNUSED),
            "llms": NatKey(reason=UNUSED),
        },
    }
)


def key_of(part: str, path: tuple[str, ...]) -> NatKey:
    """Returns the entry of KEYS for a key of a part, or for the nearest mapping around it. Unknown keys get the reason UNKNOWN."""
    keys = KEYS[part]
    around = (".".join(path[:length]) for length in range(len(path), -1, -1))
    return next((keys[each] for each in around if each in keys), NatKey(reason=UNKNOWN))
