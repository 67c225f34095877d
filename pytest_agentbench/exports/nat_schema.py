"""Names in the files of the NeMo Agent Toolkit: what the importer reads and the exporter writes."""

from __future__ import annotations

from pytest_agentbench.metrics.other_tools.nat import WHOLE

#: Files of a job.
ANSWERS, EVENTS, TRACES = "workflow_output.json", "standardized_data_all.csv", "all_requests_profiler_traces.json"
CONFIG, CONFIG_GIVEN, METADATA = "config_effective.yml", "config_original.yml", "config_metadata.json"
CALLS, GAPS = "tokens_per_second_analysis.csv", "inter_token_latency_distribution.csv"
OPTIMIZATION, REPORT = "inference_optimization.json", "workflow_profiling_report.txt"

EVALUATOR_ENDING = "_output.json"  # behind an evaluator's name
NOT_EVALUATORS = frozenset({ANSWERS, "workflow_output_atif.json"})
MAIN = "tool_selection_quality"  # the evaluator of tools
FRAMEWORK = "langchain"

#: Columns of EVENTS.
EVENT_COLUMNS = (
    *("event_type", "event_timestamp", "example_number", "prompt_tokens", "completion_tokens", "total_tokens", "llm_text_input"),
    *("llm_text_output", "llm_new_token", "llm_name", "tool_name", "function_name", "function_id", "parent_function_name"),
    *("parent_function_id", "UUID", "framework"),
)

#: Columns of CALLS and of GAPS.
CALL_COLUMNS = (
    *("example_num", "llm_call_id", "llm_name", "start_time", "end_time", "duration_sec", "num_tokens", "tokens_per_sec"),
    *("time_to_first_token_sec", "mean_itl_sec", "median_itl_sec"),
)
GAP_COLUMNS = ("itl_sec",)

#: Columns of a benchmark.
BENCHMARK_COLUMNS = (
    *("concurrency", "total_llm_calls", "total_tokens", "sum_of_durations_sec", "wall_clock_time_sec"),
    *(f"ttft_{name}_ms" for name in WHOLE),
    *(f"itl_{name}_ms" for name in WHOLE),
    *(f"itl_percall_{name}_ms" for name in WHOLE[:4]),
    *(f"per_request_throughput_{name}_toks" for name in WHOLE),
    *("aggregate_throughput_toks", "aggregate_speedup"),
)
