"""Pages in Prometheus' text format, and which of their figures are ours.

The format is a few lines of grammar, and of a page of a thousand lines a dozen matter: only these are read, in half a
millisecond, so that this process can go on with what it is there for. A parser of all of it would be a dependency.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from openloop.records import MEASURES

PageValues = dict[str, list[tuple[dict[str, str], float]]]  # by name: label sets and their values

# Ours, and where it stands in the page of each server: the first formula that a page has values for counts. A sum is
# of what is there of it. An underscore in place of a colon is the same name: some exporters write it so.
FIGURES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "queue": (
        ("vLLM", "vllm:num_requests_waiting"),
        ("SGLang", "sglang:num_queue_reqs"),
        ("TGI", "tgi_queue_size"),
        ("llama-server", "llamacpp:requests_deferred"),
        ("TensorRT-LLM", "trtllm_num_requests_waiting"),
        ("Triton", 'nv_trt_llm_request_metrics{request_type="waiting"}'),
        ("llm-d", "llm_d_epp_average_queue_size * llm_d_epp_ready_endpoints"),
        ("llm-d, older", "inference_pool_average_queue_size * inference_pool_ready_pods"),
    ),
    "running": (
        ("vLLM", "vllm:num_requests_running"),
        ("SGLang", "sglang:num_running_reqs"),
        ("TGI", "tgi_batch_current_size"),
        ("llama-server", "llamacpp:requests_processing"),
        ("TensorRT-LLM", "trtllm_num_requests_running"),
        ("Triton", 'nv_trt_llm_request_metrics{request_type="scheduled"}'),
        ("llm-d", "llm_d_epp_average_running_requests * llm_d_epp_ready_endpoints"),
        ("llm-d, older", "inference_pool_average_running_requests * inference_pool_ready_pods"),
    ),
    "kv_use": (
        ("vLLM", "vllm:kv_cache_usage_perc"),
        ("vLLM, older", "vllm:gpu_cache_usage_perc"),
        ("SGLang", "sglang:token_usage"),
        ("llama-server, older", "llamacpp:kv_cache_usage_ratio"),
        ("TensorRT-LLM", "trtllm_kv_cache_utilization"),
        ("Triton", 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}'),
        ("llm-d", "llm_d_epp_average_kv_cache_utilization"),
        ("llm-d, older", "inference_pool_average_kv_cache_utilization"),
    ),
    "preemptions": (
        ("vLLM", "vllm:num_preemptions_total"),
        ("SGLang", "sglang:num_retracted_requests_total"),
    ),
    "prefix_queries": (
        ("vLLM", "vllm:prefix_cache_queries_total"),
        ("vLLM, older", "vllm:gpu_prefix_cache_queries_total"),
        ("SGLang", "sglang:prompt_tokens_total"),
        ("llama-server", "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"),
        ("TensorRT-LLM", "trtllm_prompt_tokens_total"),
    ),
    "prefix_hits": (
        ("vLLM", "vllm:prefix_cache_hits_total"),
        ("vLLM, older", "vllm:gpu_prefix_cache_hits_total"),
        ("SGLang", "sglang:cached_tokens_total"),
        ("llama-server", "llamacpp:prompt_tokens_cached_total"),
        ("TensorRT-LLM", "trtllm_prompt_cached_tokens_total"),
    ),
    "prefix_hit_rate": (
        ("vLLM, older", "vllm:gpu_prefix_cache_hit_rate"),
        ("SGLang", "sglang:cache_hit_rate"),
        ("TensorRT-LLM", "trtllm_kv_cache_hit_rate"),
    ),
    "drafted": (
        ("vLLM", "vllm:spec_decode_num_draft_tokens_total"),
        ("llama-server", "llamacpp:spec_decode_num_draft_tokens_total"),
        ("TensorRT-LLM", "trtllm_spec_decode_num_draft_tokens_total"),
    ),
    "accepted": (
        ("vLLM", "vllm:spec_decode_num_accepted_tokens_total"),
        ("llama-server", "llamacpp:spec_decode_num_accepted_tokens_total"),
        ("TensorRT-LLM", "trtllm_spec_decode_num_accepted_tokens_total"),
    ),
    "draft_acceptance": (("SGLang", "sglang:spec_accept_rate"),),
    "prompt_tokens": (
        ("vLLM", "vllm:prompt_tokens_total"),
        ("SGLang", "sglang:prompt_tokens_total"),
        ("TGI", "tgi_request_input_length_sum"),
        ("llama-server", "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"),
        ("TensorRT-LLM", "trtllm_prompt_tokens_total"),
    ),
    "output_tokens": (
        ("vLLM", "vllm:generation_tokens_total"),
        ("SGLang", "sglang:generation_tokens_total"),
        ("TGI", "tgi_request_generated_tokens_sum"),
        ("llama-server", "llamacpp:tokens_predicted_total"),
        ("TensorRT-LLM", "trtllm_generation_tokens_total"),
    ),
    "finished": (
        ("vLLM", "vllm:request_success_total"),
        ("SGLang", "sglang:num_requests_total"),
        ("TGI", "tgi_request_success"),
        ("TensorRT-LLM", "trtllm_request_success_total"),
    ),
}

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,[ \t]*|(?=\}))')
_VALUE = re.compile(
    r"[ \t]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|nan))(?:[ \t]+[+-]?[0-9]+)?\s*"
)
_ESCAPED = re.compile(r"\\(.)")


def read_page(text: str, wanted: set[str]) -> PageValues:
    """Samples of the families in `wanted`; a line of one of them that is not in the format is a ValueError."""
    page: PageValues = {}
    for line in text.split("\n"):
        match = _NAME.match(line)
        if match is None or (name := match[0].replace(":", "_")) not in wanted:
            continue
        labels, at = _read_labels(line, match.end())
        value = _VALUE.fullmatch(line, at)
        if value is None:
            raise ValueError(f"{line!r} is no sample in Prometheus' format")
        page.setdefault(name, []).append((labels, float(value[1])))
    return page


def _read_labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """Labels from place `at`, and the place after them."""
    found: dict[str, str] = {}
    if not line.startswith("{", at):
        return found, at
    at += 1
    while not line.startswith("}", at):
        match = _LABEL.match(line, at)
        if match is None:
            raise ValueError(f"{line!r} has labels that are not in Prometheus' format")
        found[match[1]] = _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], match[2])
        at = match.end()
    return found, at + 1


def read_figures(text: str) -> dict[str, float]:
    """Our figures in a page: counts summed over label sets (engines, ranks, reasons), shares averaged."""
    page = read_page(text, _WANTED)
    found: dict[str, float] = {}
    for name, formulas in _FORMULAS.items():
        values = (_evaluate(formula, page, mean=MEASURES[name].kind == "share") for formula in formulas)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[name] = value
    return found


_Formula = list[list[tuple[str, dict[str, str]]]]  # a sum of products of families, each with the labels it must have


def _read_formula(text: str) -> _Formula:
    def factor(text: str) -> tuple[str, dict[str, str]]:
        name = _NAME.match(text)
        assert name is not None
        return name[0].replace(":", "_"), _read_labels(text, name.end())[0]

    return [[factor(each) for each in term.split(" * ")] for term in text.split(" + ")]


def _evaluate(formula: _Formula, page: PageValues, *, mean: bool) -> float | None:
    terms = []
    for term in formula:
        factors = []
        for name, labels in term:
            values = [value for have, value in page.get(name, ()) if labels.items() <= have.items()]
            factors.append(sum(values) / (len(values) if mean else 1) if values else math.nan)
        if math.isfinite(product := math.prod(factors)) and product >= 0:  # some write -1 or NaN for what is not known
            terms.append(product)
    return sum(terms) if terms else None


_FORMULAS = {name: [_read_formula(text) for _, text in sources] for name, sources in FIGURES.items()}
_WANTED = {name for formulas in _FORMULAS.values() for formula in formulas for term in formula for name, _ in term}
