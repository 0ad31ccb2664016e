"""The short text form: what is read, what is written back, and what is refused in which words."""

import math

import numpy as np
import pytest

from openloop.arrivals import ARRIVALS, GammaArrivals, Piecewise, Poisson, RateStep, Recording, read_arrivals
from openloop.distributions import DISTRIBUTIONS, TIMES, Exponential, Fixed, Lognormal, Straggling
from openloop.errors import SpecError
from openloop.sim import QUEUES, After, Batch, Fcfs, Hedged, Pipeline, ReplicaQueue, read_queue
from openloop.terms import SECONDS, read_term, write_term


def test_parameters_come_by_name_or_in_order() -> None:
    assert read_arrivals("gamma:rate=12,cv=2") == GammaArrivals(12, 2)
    assert read_arrivals("gamma:12,2") == GammaArrivals(12, 2)
    assert read_arrivals(" gamma : cv = 2 , rate = 720/min ") == GammaArrivals(12, 2)


def test_a_term_inside_another_stands_in_parentheses() -> None:
    read = read_queue("fcfs:service=straggling(lognormal(median=40ms,sigma=0.35),share=2%,factor=6),servers=inf")
    assert read == Fcfs(Straggling(Lognormal(0.040, 0.35), 0.02, 6.0), servers=None)


def test_a_bare_value_is_a_fixed_one() -> None:
    assert read_queue("pipeline:2ms,exponential(20ms)") == Pipeline((Fixed(0.002), Exponential(0.020)))


@pytest.mark.parametrize(
    "term",
    [
        GammaArrivals(12.5, 0.1),
        Poisson(1 / 3),
        Piecewise((RateStep(5, 0.0), RateStep(50, 60.0))),
        Fcfs(Exponential(1 / 500), servers=None, connections=50, stall=1.0, every=10.0),
        Fcfs(Fixed(0.0123456789)),
        Hedged(Lognormal(0.04, 0.5), After(percentile=95)),
        Hedged(Lognormal(0.04, 0.5), After(seconds=0.02), servers=8),
        Hedged(Fixed(0.001), After(percentile=99.99999)),
        ReplicaQueue(Straggling(Fixed(100.0), 0.01, 2.0), Fixed(10.0), 0.001, Fixed(0.02)),
        Pipeline((Fixed(0.002), Exponential(0.0015))),
    ],
    ids=str,
)
def test_what_is_written_is_read_as_the_same(term: Fcfs) -> None:
    registry = QUEUES if term.name in QUEUES else ARRIVALS
    assert read_term(str(term), registry, "thing") == term


def test_defaults_are_left_out() -> None:
    assert str(Fcfs(Fixed(0.002))) == "fcfs:service=2ms"


def test_inside_a_term_times_are_written_with_their_unit() -> None:
    assert TIMES.write(Exponential(0.002)) == "exponential(mean=2ms)"
    assert write_term(Exponential(0.002), SECONDS) == "exponential:mean=2ms"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gama:rate=3,cv=1", "unknown arrival process 'gama'; did you mean 'gamma'? known are constant, poisson, "),
        ("gamma:rate=3", "arrival process 'gamma:rate=3': cv is missing; parameters are rate, cv"),
        ("gamma:rate=3,vc=1", "gamma has no parameter 'vc'; known are rate, cv"),
        ("gamma:raet=3,cv=1", "gamma has no parameter 'raet'; did you mean 'rate'?"),
        ("gamma:rate=3,cv=1,rate=4", "rate is given twice; keep one"),
        ("gamma:3,1,4", "there is nothing left for '4' to mean; parameters are rate, cv"),
        ("gamma:rate=3,cv=0", "cv is 0; it must be at least 0.001"),
        ("gamma:rate=fast,cv=1", "rate: 'fast' is not a number"),
        ("gamma:rate=3/week,cv=1", "rate: '3/week' has the unknown unit '/week'; write it as 3/s or 3/min"),
        ("gamma:rate=-3,cv=1", "rate: '-3' is negative; a rate is zero or more"),
        ("poisson:rate=0", "rate is 0.0; it is a number from 1e-09 to 1e+09"),
        ("", "'' is no arrival process"),
        ("12", "'12' is no arrival process; write a name and its parameters, such as name:key=value"),
        ("piecewise:5@1s", "the first step begins at 0s"),
        ("piecewise:5@0s,6@0s", "each further one later than the one before"),
        ("piecewise:5@0s,6", "'6' is no step; write a rate and when it begins, such as 20@60s"),
        ("onoff:high=4,on=0s,off=1s", "on is 0; it must be at least 1e-06"),
        ("sine:rate=4,swing=150%", "swing: '150%' is not a share between 0% and 100%"),
        ("replay:no-such-file", "no-such-file cannot be read"),
    ],
)
def test_mistakes_in_arrivals_are_named(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_arrivals(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fcfs", "queue 'fcfs': service is missing; parameters are service, servers, connections, stall, every"),
        ("fcfs:exponential(2)", "service: distribution 'exponential(2)': mean: '2' needs a unit"),
        ("fcfs:2", "service: '2' needs a unit"),
        ("fcfs:expnential(2ms)", "service: unknown distribution 'expnential'; did you mean 'exponential'?"),
        ("fcfs:exponential(2ms", "a parenthesis is missing"),
        ("fcfs:exponential 2ms)", "a parenthesis is missing"),
        ("fcfs:2ms,servers=0", "servers is 0; it is a whole number from 1 to 1,000,000, or inf"),
        ("fcfs:2ms,stall=3s", "stall is 3 s, so every must be longer than that; it is 0 s"),
        ("fcfs:uniform(3ms,2ms)", "high is 0.002, below low, which is 0.003"),
        ("hedged:2ms,after=20", "after: '20' needs a unit"),
        ("hedged:2ms,after=p200", "after: 'p200' is no percentile; write p95, or a time such as 20ms"),
        ("hedged:2ms,after=", "after: '' is not a number"),
        ("pipeline:stages=1ms", "stages are written without a name: pipeline:first,second"),
        ("fcfs:2ms,", "there is nothing between two commas, or after the last; remove one"),
        ("fcfs:" + "straggling(" * 20 + "2ms", "parentheses are more than 8 deep"),
        ("fcfs:gamma(1ms,1e-170)", "cv is 1e-170; it must be at least 0.001"),
        ("fcfs:\N{ARABIC-INDIC DIGIT THREE}ms", "ms' is not a number"),
        ("batch:size=0,fixed=1ms,each=1ms", "size is 0; it is a whole number from 1 to 1e+09"),
        ("batch:size=2.5,fixed=1ms,each=1ms", "size: '2.5' is not a whole number"),
        ("pipeline", "stages is missing"),
    ],
)
def test_mistakes_in_queues_are_named(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_queue(text)
    assert sentence in str(caught.value)


def test_the_python_interface_refuses_the_same() -> None:
    with pytest.raises(SpecError, match="rate is -1"):
        Poisson(-1)
    with pytest.raises(SpecError, match="sigma is nan"):
        Lognormal(1.0, math.nan)
    with pytest.raises(SpecError, match="either a time"):
        After()
    with pytest.raises(SpecError, match="after is -1"):
        After(seconds=-1)
    with pytest.raises(SpecError, match="service is 0.002, which is no distribution; for a fixed value write Fixed"):
        Fcfs(0.002)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="size is 2.5; it is a whole number"):
        Batch(2.5, 0.1, 0.1)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="servers is 2.5; it is a whole number"):
        Fcfs(Fixed(0.002), 2.5)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="there are no stages"):
        Pipeline(())
    with pytest.raises(SpecError, match="not sorted"):
        Recording("given", np.array([2.0, 1.0]))
    with pytest.raises(SpecError, match="beginning of a step is nan"):
        RateStep(5, math.nan)


def test_every_registered_thing_says_what_it_is() -> None:
    for registry in (ARRIVALS, DISTRIBUTIONS, QUEUES):
        for name, kind in registry.items():
            assert kind.name == name
            assert kind.__doc__
