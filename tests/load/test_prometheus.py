"""Pages are read as they were written, and each server's figures are found under our names."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.load.prometheus import FIGURES, PageValues, read_figures, read_page
from openloop.records import MEASURES

LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=3)
SAMPLES = st.lists(st.tuples(st.sampled_from(["a", "b_total"]), LABELS, st.floats(), st.booleans()), max_size=8)


def escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def written(name: str, labels: dict[str, str], value: float, stamped: bool) -> str:
    inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
    return f"{name}{'{' + inside + '}' if labels else ''} {number}{' 1395066363000' if stamped else ''}\n"


@given(samples=SAMPLES)
def test_what_was_written_is_read(samples: list[tuple[str, dict[str, str], float, bool]]) -> None:
    text = "# HELP a b_total 5\n# TYPE a gauge\n\n" + "".join(written(*each) for each in samples) + 'other{x="}"} 1\n'
    expected: PageValues = {}
    for name, labels, value, _ in samples:
        expected.setdefault(name, []).append((labels, value))
    found = read_page(text, {"a", "b_total"})
    assert repr(found) == repr(expected)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("a 1.458255915e9", {}, 1458255915.0),
        ("a\t5", {}, 5.0),
        ('a{x="1",} 5 -7\r', {"x": "1"}, 5.0),
        ('a{ x = "1" , y="a,b}" } .5', {"x": "1", "y": "a,b}"}, 0.5),
        (r'a{x="say \"hi\", \\ or\n"} 2', {"x": 'say "hi", \\ or\n'}, 2.0),
        ("a{} +Inf", {}, math.inf),
        ("a inf", {}, math.inf),
    ],
)
def test_the_corners_of_the_format(line: str, labels: dict[str, str], value: float) -> None:
    assert read_page(f"{line}\n", {"a"}) == {"a": [(labels, value)]}


@pytest.mark.parametrize("line", ["a", "a five", "a 1 2 3", 'a{x="1} 5', "a{x=1} 5", 'a{x="1"', "a 1_000", "a{,} 1"])
def test_a_line_that_is_not_in_the_format_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="Prometheus' format"):
        read_page(line, {"a"})


def test_counts_are_summed_over_label_sets_and_shares_averaged() -> None:
    page = 'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} 2\n'
    page += 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
    assert read_figures(page) == {"queue": 3.0, "kv_use": 0.5}


def test_the_newer_of_two_names_counts_and_is_not_added_to_the_older() -> None:
    page = "vllm:gpu_cache_usage_perc 0.3\nvllm:kv_cache_usage_perc 0.4\n"
    assert read_figures(page) == {"kv_use": 0.4}
    assert read_figures("vllm:gpu_cache_usage_perc 0.3\n") == {"kv_use": 0.3}


def test_a_name_with_underscores_for_colons_is_the_same() -> None:
    assert read_figures("sglang_num_queue_reqs 4\n") == {"queue": 4.0}


def test_what_a_server_does_not_know_is_not_told() -> None:
    assert read_figures("vllm:gpu_prefix_cache_hit_rate -1\nvllm:num_requests_running NaN\n") == {}
    assert read_figures("llamacpp:kv_cache_usage_ratio -nan\nllamacpp:requests_deferred 3\n") == {
        "queue": 3.0
    }  # as C++ has it


def test_labels_averages_and_sums_are_taken_as_the_table_says() -> None:
    triton = 'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 3\n'
    triton += 'nv_trt_llm_request_metrics{model="m",request_type="max"} 9\n'
    assert read_figures(triton) == {"queue": 3.0}
    pool = 'llm_d_epp_average_queue_size{name="p"} 1.5\nllm_d_epp_ready_endpoints{name="p"} 4\n'
    assert read_figures(pool) == {"queue": 6.0}
    assert read_figures("llm_d_epp_average_queue_size 1.5\n") == {}
    llama = "llamacpp:prompt_tokens_total 30\n"
    assert read_figures(llama) == {"prefix_queries": 30.0, "prompt_tokens": 30.0}
    cached = llama + "llamacpp:prompt_tokens_cached_total 10\n"
    assert read_figures(cached) == {"prefix_queries": 40.0, "prompt_tokens": 40.0, "prefix_hits": 10.0}


@pytest.mark.parametrize(
    ("name", "formula"), [(name, formula) for name, sources in FIGURES.items() for _, formula in sources]
)
def test_every_name_in_the_table_is_found_in_a_page_that_has_it(name: str, formula: str) -> None:
    page = "".join(f"{each} 2\n" for term in formula.split(" + ") for each in term.split(" * "))
    assert read_figures(page)[name] == sum(2 ** len(term.split(" * ")) for term in formula.split(" + "))


def test_the_table_maps_to_measures_that_are_known() -> None:
    assert set(FIGURES) <= set(MEASURES)


def test_text_of_another_kind_tells_nothing() -> None:
    assert read_figures("<html><body>vllm:num_requests_waiting 5</body></html>") == {}
    assert read_figures("") == {}
