"""Each metric, its formula, and what other tools call it and how theirs differs.

Of the versions that were read: vllm bench 0.32, sglang 0.5.23, aiperf 0.13, guidellm 0.8.1, inference-perf 0.7,
genai-bench 0.0.5, veeksha 0.4.5, etalon and llmperf of 2024, LoadGen 6.0, kneepoint 0.3, OpenTelemetry's GenAI
conventions 1.41, and k6, vegeta, locust, hey and wrk2 as of 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Theirs:
    name: str
    differs: str = "the same, from send"


@dataclass(frozen=True)
class Metric:
    """`key` is a key of the score; times are in seconds and start when a request was due."""

    key: str
    what: str
    formula: str
    theirs: Mapping[str, Theirs]


# By key, what it is and formula: what each tool has.
TABLE: Final[Mapping[tuple[str, str, str], Mapping[str, Theirs]]] = {
    ("ttft_s", "time to first token", "t_1 - due"): {
        "vllm": Theirs("ttft", "from send; the first chunk with choices, also an empty one that names the role"),
        "sglang": Theirs("ttft", "from send; first content or reasoning; a new connection is inside"),
        "aiperf": Theirs("time_to_first_token", "from send; first chunk with content or reasoning"),
        "guidellm": Theirs("time_to_first_token_ms", "from send, on the wall clock"),
        "inference-perf": Theirs("time_to_first_token", "from send; content only, so reasoning is not seen"),
        "genai-bench": Theirs("ttft"),
        "veeksha": Theirs("ttfc", "from when a client thread picked it up; first chunk"),
        "etalon": Theirs("ttft"),
        "llmperf": Theirs("ttft_s"),
        "loadgen": Theirs("first token latency", "from schedule: the same"),
        "kneepoint": Theirs("ttft_ms"),
        "otel": Theirs("gen_ai.client.operation.time_to_first_chunk", "from send; the first chunk of any kind"),
        "k6": Theirs("http_req_waiting", "from send to the first byte, which need be no token"),
    },
    ("tpot_s", "time per output token of a request", "(t_n - t_1) / (n - 1)"): {
        "vllm": Theirs("tpot", "n by the server's usage, else counted again by a tokenizer; n = 1 counts as 0"),
        "sglang": Theirs("tpot", "to the end of the stream; n falls back to the number asked for"),
        "aiperf": Theirs("inter_token_latency", "another name; divided by n less the tokens of the first chunk"),
        "guidellm": Theirs("inter_token_latency_ms", "another name: its time_per_output_token_ms is E2E / n"),
        "inference-perf": Theirs("time_per_output_token", "n by its own tokenizer unless told otherwise"),
        "genai-bench": Theirs("tpot", "to the end of the stream"),
        "veeksha": Theirs("tpot", "n by its own tokenizer, reasoning not counted"),
        "etalon": Theirs("tpot", "mean of gaps, where further tokens of a chunk have gaps of 0"),
        "loadgen": Theirs("time per output token", "n as the system under test reports it"),
        "kneepoint": Theirs("tpot_ms", "divided by n and not n - 1"),
        "otel": Theirs("gen_ai.server.time_per_output_token", "by the server's clock"),
    },
    ("itl_s", "gaps between tokens, pooled", "t_i - t_(i-1) over all requests"): {
        "vllm": Theirs("itl", "gaps between chunks; chunks read together are microseconds apart"),
        "sglang": Theirs("itl", "gaps between chunks, shared out over their tokens in its native dialect"),
        "aiperf": Theirs("inter_chunk_latency", "gaps between chunks, per request"),
        "inference-perf": Theirs("inter_token_latency", "tokens of one chunk have gaps of 0, as here"),
        "veeksha": Theirs("tbc", "gaps between chunks"),
        "etalon": Theirs("tbt", "tokens of one chunk have gaps of 0, as here"),
        "llmperf": Theirs("inter_token_latency_s", "E2E / chunks of a request, the first token included"),
        "kneepoint": Theirs("itl_mean_ms, itl_p99_ms", "per request, gaps between chunks"),
        "otel": Theirs("gen_ai.client.operation.time_per_output_chunk", "gaps between chunks"),
    },
    ("tbt_s", "longest gap of a request", "max_i (t_i - t_(i-1))"): {},
    ("jitter_s", "longest less shortest gap of a request", "max_i gap - min_i gap"): {},
    ("longest_wait_s", "longest time without anything new", "max of TTFT and of all gaps"): {},
    ("e2e_s", "end-to-end latency", "t_n - due; the end, where nothing was streamed"): {
        "vllm": Theirs("e2el", "from send, to the last chunk with choices; older versions, to the usage chunk"),
        "sglang": Theirs("e2e_latency", "from send, to the last line of the stream"),
        "aiperf": Theirs("request_latency", "from send, to the last chunk with content"),
        "guidellm": Theirs("request_latency", "from send, to the end of the stream"),
        "inference-perf": Theirs("request_latency", "from send, to the end of the stream"),
        "genai-bench": Theirs("e2e_latency", "from send, to the end of the stream"),
        "veeksha": Theirs("end_to_end_latency", "sum of the gaps"),
        "etalon": Theirs("end_to_end_latency", "sum of the gaps"),
        "llmperf": Theirs("end_to_end_latency_s"),
        "loadgen": Theirs("latency", "from schedule: the same"),
        "kneepoint": Theirs("total_ms", "from send, to the end of the stream"),
        "otel": Theirs("gen_ai.client.operation.duration", "from send, with all retries inside"),
        "k6": Theirs("http_req_duration", "from send, without the wait for a connection"),
        "vegeta": Theirs("latency"),
        "locust": Theirs("response_time", "from send, rounded to two digits in its export"),
        "hey": Theirs("response-time", "from send"),
        "wrk2": Theirs("latency", "from schedule: the same; its uncorrected latency is from send"),
    },
    ("goodput_rps", "requests accepted per second", "accepted / T, T the window in which they were due"): {
        "vllm": Theirs("request_goodput", "from send; T is until the last answer; gates ttft, tpot, e2el"),
        "sglang": Theirs("request_goodput", "from send; T is until the last answer; gates ttft, tpot, e2el"),
        "aiperf": Theirs("goodput", "from send; T is its whole phase; a gate on any metric"),
        "guidellm": Theirs("request_goodput", "from send; T is until the last answer; gates ttft, tpot, e2el"),
        "inference-perf": Theirs("request_goodput", "from send; T from the first send to the last end of successes"),
    },
    ("attainment", "share of requests accepted", "accepted / due, failures included"): {
        "sglang": Theirs("slo_attainment"),
        "aiperf": Theirs("good_request_fraction", "from send; what its client never sent is not in it"),
        "guidellm": Theirs("slo_attainment", "from send; what it cancelled at its limit is left out"),
        "inference-perf": Theirs("goodput_percentage", "from send; a share of successes: failures are left out"),
        "loadgen": Theirs("valid", "the percentile of TTFT and that of TPOT, each by itself"),
        "veeksha": Theirs("slo met", "a percentile of successes against each bound by itself"),
    },
    ("output_token_goodput", "output tokens of accepted requests per second", "sum of n over accepted / T"): {
        "inference-perf": Theirs("token_goodput", "prompt tokens are added")
    },
    ("throughput_rps", "requests completed per second", "completed / T"): {
        "vllm": Theirs("request_throughput", "T is until the last answer"),
        "sglang": Theirs("request_throughput", "T is until the last answer"),
        "aiperf": Theirs("request_throughput", "T is its whole phase"),
        "guidellm": Theirs("requests_per_second", "T is until the last answer"),
        "inference-perf": Theirs("requests_per_sec", "T is until the last answer"),
        "genai-bench": Theirs("requests_per_second", "a closed loop: what was asked for, not what was offered"),
        "loadgen": Theirs("completed samples per second", "T is until the last answer"),
        "k6": Theirs("http_reqs", "failures included"),
        "vegeta": Theirs("throughput", "T is until the last answer"),
        "locust": Theirs("requests/s", "failures included"),
        "hey": Theirs("Requests/sec", "failures included; T is until the last answer"),
        "wrk2": Theirs("requests/sec", "failures included"),
    },
    ("output_tokens_per_s", "output tokens of completed requests per second", "sum of n over completed / T"): {
        "vllm": Theirs("output_throughput", "T is until the last answer"),
        "sglang": Theirs("output_throughput", "T is until the last answer"),
        "aiperf": Theirs("output_token_throughput", "T is its whole phase"),
        "guidellm": Theirs("output_tokens_per_second", "by when tokens came"),
        "inference-perf": Theirs("output_tokens_per_sec", "T is until the last answer"),
        "genai-bench": Theirs("mean_output_throughput_tokens_per_s", "divided by the run with its warm-up"),
        "veeksha": Theirs("output_throughput", "of one request: n / E2E"),
        "llmperf": Theirs("request_output_throughput_token_per_s", "of one request: n / E2E"),
        "loadgen": Theirs("completed tokens per second", "T is until the last answer"),
    },
    ("client_lag_s", "how late the client was", "first sent - due"): {
        "vllm": Theirs(
            "client_queue_time", "the wait for a slot of --max-concurrency; lag of its event loop is not in it"
        ),
        "aiperf": Theirs("credit_to_start_latency", "after slots were waited for and lost arrivals forgotten"),
        "guidellm": Theirs("request_dispatch_delay", "the same; not part of its latencies"),
        "inference-perf": Theirs("schedule_delay", "the same; in its summary, not per request"),
        "veeksha": Theirs("ready to dispatch", "stamped at dispatch, so always about 0"),
        "loadgen": Theirs("issue delay", "the same, and part of its latencies"),
        "k6": Theirs("dropped_iterations", "a count of arrivals for which no VU was free"),
    },
    (
        "smooth_goodput",
        "tokens, less a penalty for the time a reader had to wait",
        "sum of (n - alpha f(l)) / T, l = max(0, max_i (t_i - d_i))",
    ): {},
    (
        "fluidity_index",
        "share of token deadlines met, with slack carried over",
        "deadlines met / (met + missed: one, and one per whole pace of lateness), mean over due",
    ): {"etalon": Theirs("1 - deadline_miss_rate", "its first deadline is a predicted prefill time plus slack")},
    ("qoe", "quality of experience by Andes", "1 - (area lost to delays) / (area expected)"): {},
    ("cost_per_accepted", "money per accepted request", "cost of all attempts / accepted"): {
        "kneepoint": Theirs("$ / resolved task", "per task that a judge calls resolved, whatever its latency")
    },
    ("cache_hit_rate", "share of prompt tokens found in a prefix cache", "cached / prompt tokens of the answers"): {
        "sglang": Theirs("cache_hit_rate_pct", "the same, with --cache-report"),
        "guidellm": Theirs("cached_tokens", "counted, not divided"),
        "otel": Theirs("gen_ai.usage.cache_read.input_tokens", "counted, per call"),
    },
}
TOOLS: Final = tuple(dict.fromkeys(tool for theirs in TABLE.values() for tool in theirs))
METRICS: Final = tuple(Metric(*about, theirs) for about, theirs in TABLE.items())
