"""Everything that a run is made of, as a user writes it: one YAML file, or the flags of a command, or both."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from openloop.arrivals import Arrivals, read_arrivals
from openloop.cluster import connected, hosts_on
from openloop.distributions import Distribution, read_distribution
from openloop.errors import SpecError
from openloop.load.address import Address, Place, find_place, look_at_certificates, shown
from openloop.load.conductor import Watch, drive
from openloop.load.exchange import exchange, measure_scale, only_model, restart
from openloop.load.plan import Load
from openloop.load.spread import MachinePart, spread
from openloop.load.targets import TARGETS, Function, JsonTarget, Plain, Target, check_template
from openloop.load.wire import WireError
from openloop.persistence import read_hedge, read_repair, read_retry
from openloop.plugins import find_function
from openloop.quality import Gating, read_gating
from openloop.records import Prices, Run, TimedEvent, Warmth, read_prices
from openloop.said import without_keys
from openloop.slo import Objectives, read_slo
from openloop.spec import Strict, convert, read_text, read_yaml, saying_where, suggest
from openloop.terms import NUMBER
from openloop.units import parse_seconds, parse_share, to_ns, write_seconds
from openloop.workload import Ask, Scale, Synthetic, Warming, Words, Workload, read_source, read_warming, word_tokens
from openloop.workload.mix import Class
from openloop.workload.warmth import Cold, window_s

STARTER = Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")  # what `openloop init` writes
MOST_WORKERS = 64
SIMULATED_FOR = "10m"  # how long they come where that costs no time: knees of short runs are too high
SAID_BY = {  # of the body of a request, and so it is in the rows
    "--model": ("model",),
    "--stream or --no-stream": ("stream",),
    "--output": ("max_tokens", "max_output_tokens"),
    "--workload": ("messages", "prompt", "input"),
}
FREE_S = 1.0  # within which a server that has nothing to do answers a short question


class TargetSpec(Strict, frozen=True):
    url: str | list[str] = ""  # several: asked in turn
    api: str = "chat"
    model: str | None = None  # null: the one that the server has
    stream: bool = True
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    key_env: str | None = None  # the variable that holds the key; null: the usual one of the API
    ca: str = ""  # file of certificates to trust besides the system's
    insecure: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)  # more for the body of every request
    template: str | None = None  # api http: file of the body
    method: str = "POST"  # api http
    replica_header: str | None = None  # of responses: says who served
    metrics: bool = True  # scrape /metrics during the run
    cache_salt: bool = False  # the API takes a cache_salt, as vLLM's does: warmth then leaves prompts as they are


class ClassSpec(Strict, frozen=True, rename={"name": "class"}):
    name: str
    share: str | float
    source: str
    slo: Any = None


class EventSpec(Strict, frozen=True):
    """Something that will be done to the system while the run goes on."""

    at: str  # after the start
    kind: str
    detail: str | None = None


class Limits(Strict, frozen=True):
    requests: int | None = None
    spend: float | None = None


class Facts(Strict, frozen=True):
    """What is known of the system and cannot be measured from outside."""

    engine: str | None = None
    engine_version: str | None = None
    engine_flags: str | None = None
    model_revision: str | None = None
    quantization: str | None = None
    hardware: str | None = None
    replicas: int | None = None
    cache_warmth: Warmth | None = None


class Scenario(Strict, frozen=True, rename={"seconds": "for"}):
    target: TargetSpec = TargetSpec()
    workload: str | list[ClassSpec] = "synthetic:prompt=128,output=64"
    tokenizer: str | None = None  # folder; prompts then have exactly the tokens that are asked for
    tokens_per_word: float | None = None  # null: asked of the server
    arrivals: str | None = None  # null: as the workload says
    seconds: str = "60s"
    seed: int = 0
    slo: Any = None
    gates: Any = None  # of quality: a file, a gate, several, or what stands in a file
    repair: str | int | None = None
    keep_texts: bool = False
    prices: Prices | str | None = None  # or a file of them
    retry: str | int | None = None
    hedge: str | None = None
    warmth: str | None = None
    restart: str | None = None  # a command that ends the server and starts it anew, before the run
    events: list[EventSpec] = []  # noqa: RUF012
    limits: Limits = Limits()
    timeout: str = "120s"
    drain: str = "30s"
    workers: int = 1
    connections: int | None = None
    closed: int | None = None
    facts: Facts = Facts()

    @property
    def urls(self) -> list[str]:
        return self.target.url if isinstance(self.target.url, list) else [self.target.url]

    @property
    def drain_s(self) -> float:
        return _seconds(self.drain, "drain")

    @property
    def horizon_s(self) -> float:
        return _seconds(self.seconds, "for")

    def read_workload(self) -> Workload:
        if isinstance(self.workload, str):
            return Workload.of(read_source(self.workload))
        shares = [parse_share(str(each.share)) for each in self.workload]
        names = [each.name for each in self.workload]
        if not all(names):
            raise SpecError("a class of the workload has no name; give it one, as in class: chat")
        if len(set(names)) < len(names):
            raise SpecError(f"two classes of the workload have the same name: {', '.join(names)}")
        pairs = zip(self.workload, shares, strict=True)
        return Workload(tuple(Class(each.name, share, read_source(each.source)) for each, share in pairs))

    def read_arrivals(self) -> Arrivals | None:
        return None if self.arrivals is None else read_arrivals(self.arrivals)

    def read_prices(self) -> Prices | None:
        return None if self.prices is None else read_prices(self.prices)

    def read_gating(self) -> Gating | None:
        if self.gates is None:
            return None
        if not isinstance(self.gates, str | list | dict) or not all(isinstance(each, str) for each in self.gates):
            raise SpecError(f"gates is {self.gates!r}; it is a file, a gate such as json, or a list of them")
        return read_gating(self.gates)

    def policies(self) -> dict[str, Any]:
        """What is done when an answer is bad or late."""
        readers: dict[str, Callable[[str], Any]] = {"retry": read_retry, "hedge": read_hedge, "repair": read_repair}
        given = {name: getattr(self, name) for name in readers}
        return {name: read(str(given[name])) for name, read in readers.items() if given[name] is not None}

    def read_warming(self) -> Warming | None:
        return None if self.warmth is None else read_warming(self.warmth)

    def whole_slo(self) -> Any:
        """With that of each class."""
        classes = {} if isinstance(self.workload, str) else {each.name: each.slo for each in self.workload if each.slo}
        if not classes:
            return self.slo
        if isinstance(self.slo, Mapping):
            given = self.slo.get("classes") or {}
            return {**self.slo, "classes": {**classes, **given} if isinstance(given, Mapping) else given}
        return {"default": self.slo, "classes": classes}

    def objectives(self) -> Objectives | None:
        slo = self.whole_slo()
        return None if slo is None else read_slo(slo)


def read_scenario(path: Path | None, flags: Mapping[str, Any] | None = None, *, live: bool = True) -> Scenario:
    """A file, and what flags change of it: their names are keys, with a dot where one is inside another.

    Where nobody is asked (not `live`), it needs no target.
    """
    found = None if path is None else read_yaml(path)
    raw = {} if found is None else found
    if not isinstance(raw, dict):
        raise SpecError(f"{path} holds no keys; `openloop init` writes a file to start from")
    for name, value in _spelt_out(raw, dict(flags or {})).items():
        _put(raw, name, value)
    found = convert(raw, Scenario, str(path) if path else "the flags")
    if live and not found.target.url:
        raise SpecError("say whom to ask: --target http://localhost:8000, or target: {url: ...} in the file")
    found = _as_long_as_recorded(found)
    _check(found)
    return found


def _as_long_as_recorded(scenario: Scenario) -> Scenario:
    """A window beyond the end of a recording would be empty, and rates and costs over it are of nothing."""
    if scenario.closed is not None:
        return scenario
    lasts_s = scenario.read_workload().lasts_s(scenario.read_arrivals())
    seconds = window_s(scenario.horizon_s, lasts_s, scenario.read_warming())
    if seconds == scenario.horizon_s:
        return scenario
    late = [each for each in scenario.events if _seconds(each.at, f"event {each.kind!r}: at") >= lasts_s]
    if late:
        raise SpecError(f"event {late[0].kind!r} is at {late[0].at}, and the recording ends after {lasts_s:.4g} s")
    return msgspec.structs.replace(scenario, seconds=write_seconds(seconds))


def _spelt_out(raw: Mapping[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Short flags as the keys that they stand for."""
    if "rate" in flags:
        if "arrivals" in flags:
            raise SpecError("--rate is short for --arrivals poisson:rate=...; give one of them")
        flags["arrivals"] = f"poisson:rate={flags.pop('rate')!r}"
    urls = flags.get("target.url")
    if urls is not None and not isinstance(urls, str):
        flags["target.url"] = urls[0] if len(urls) == 1 else list(urls)
    if "extra" in flags:
        flags["target.extra"] = _json_object("--extra", flags.pop("extra"))
    if "gates" in flags:
        flags["gates"] = list(flags["gates"])
    if "events" in flags:
        pairs = [each.partition("=") for each in flags["events"]]
        for at, equals, kind in pairs:
            if not equals or not kind.strip():
                raise SpecError(f"--event {at + equals + kind!r} is none; write it as 30s=deploy")
        flags["events"] = [{"at": at.strip(), "kind": kind.strip()} for at, _, kind in pairs]
    if "header" in flags:
        given = [each.partition(":") for each in flags.pop("header")]
        for name, colon, value in given:
            if not colon or not name.strip():
                raise SpecError(f"--header {name + colon + value!r} is none; write it as 'Name: value'")
        names = [name.strip().lower() for name, *_ in given]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f"--header {twice[0]!r} is given twice; give it once, with a comma between values")
        flags["target.headers"] = {name.strip(): value.strip() for name, _, value in given}
    lengths: dict[str, Any] = {name: _lengths(name, flags.pop(name)) for name in ("prompt", "output") if name in flags}
    if lengths:
        given = flags.get("workload", raw.get("workload", "synthetic"))
        if not isinstance(given, str):
            raise SpecError("--prompt and --output are for a workload without classes; change the file")
        source = read_source(given)
        if not isinstance(source, Synthetic):
            raise SpecError(f"--prompt and --output are for synthetic requests; {source} has lengths of its own")
        flags["workload"] = str(replace(source, **lengths))
    return flags


def _lengths(name: str, text: str) -> Distribution:
    with saying_where(f"--{name}"):
        return read_distribution(text, NUMBER)


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise SpecError(f"{flag} {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SpecError(f'{flag} {text!r} is no JSON object, such as {{"ignore_eos": true}}')
    return found


def _put(raw: dict[str, Any], name: str, value: Any) -> None:
    first, _, rest = name.partition(".")
    if rest:
        inner = raw.setdefault(first, {})
        if not isinstance(inner, dict):
            raise SpecError(f"{first} is {inner!r}; it holds keys of its own, such as {rest}")
        _put(inner, rest, value)
    else:
        raw[first] = value


def _check(scenario: Scenario) -> None:
    """What can be wrong before anybody is asked; whatever reads it says so."""
    if scenario.target.api not in TARGETS:
        raise SpecError(f"unknown api {scenario.target.api!r}{suggest(scenario.target.api, TARGETS)}")
    if scenario.target.method.upper() == "HEAD" or not scenario.target.method.isalpha():
        raise SpecError(f"method is {scenario.target.method!r}; it is one whose answer has a body, such as GET or POST")
    for flag, names in SAID_BY.items():
        for name in names:
            if scenario.target.extra.get(name) is not None:
                raise SpecError(f"extra says {name}, and so does {flag}: rows would tell another than was sent")
    for name, least in (("workers", 1), ("connections", 1), ("closed", 1), ("seed", 0)):
        value = getattr(scenario, name)
        if value is not None and value < least:
            raise SpecError(f"{name} is {value}; it is at least {least}")
    for name in ("connections", "closed"):
        value = getattr(scenario, name)
        if value is not None and value < scenario.workers:
            raise SpecError(f"{name} is {value}, which {scenario.workers} workers cannot share; use as few workers")
    if scenario.workers > MOST_WORKERS:
        raise SpecError(f"workers is {scenario.workers}; it is at most {MOST_WORKERS}")
    if scenario.limits.requests is not None and scenario.limits.requests < 1:
        raise SpecError(f"limits: requests is {scenario.limits.requests}; it is at least 1")
    if scenario.limits.spend is not None and not 0 <= scenario.limits.spend < math.inf:
        raise SpecError(f"limits: spend is {scenario.limits.spend}; it is a sum of money")
    if not scenario.horizon_s > 0:
        raise SpecError(f"for is {scenario.seconds}; a run takes some time, such as 60s")
    workload, arrivals = scenario.read_workload(), scenario.read_arrivals()
    if scenario.closed is None and arrivals is None and not workload.timed:
        raise SpecError("say when requests are due: --rate 20, or --arrivals gamma:rate=20,cv=2")
    if scenario.closed is not None and arrivals is not None:
        raise SpecError("a closed loop has no arrivals: leave out --rate and --arrivals, or --closed")
    if scenario.closed is not None and (scenario.retry is not None or scenario.hedge is not None):
        raise SpecError("a closed loop asks nobody twice: leave out --retry and --hedge, or --closed")
    if scenario.hedge is not None and scenario.target.api == "python":
        raise SpecError("a Python function is not hedged: leave --hedge out")
    if scenario.limits.spend is not None and scenario.prices is None:
        raise SpecError("a limit on what is spent needs prices: give --price, or prices in the file")
    if scenario.tokens_per_word is not None and not 0.01 <= scenario.tokens_per_word <= 100:
        raise SpecError(f"tokens_per_word is {scenario.tokens_per_word}; a word has about 1.3")
    scenario.policies()
    if not _seconds(scenario.timeout, "timeout") > 0:
        raise SpecError(f"timeout is {scenario.timeout}; an answer takes some time, such as 120s")
    _seconds(scenario.drain, "drain")
    scenario.objectives()
    scenario.read_prices()
    for event in scenario.events:
        if _seconds(event.at, f"event {event.kind!r}: at") >= scenario.horizon_s:
            raise SpecError(f"event {event.kind!r} is at {event.at}, and the run is over after {scenario.seconds}")
    _check_quality(scenario)
    _check_warmth(scenario)


def _check_quality(scenario: Scenario) -> None:
    gating = scenario.read_gating()
    if scenario.repair is not None:
        if gating is None:
            raise SpecError("a repair needs a quality gate that an answer can fail: give --gate, or gates in the file")
        if scenario.closed is not None:
            raise SpecError("a closed loop asks nobody twice: leave out --repair, or --closed")
    if (gating or scenario.keep_texts) and scenario.target.api == "embeddings":
        raise SpecError("embeddings have no words: leave out --gate and --keep-texts")


def _check_warmth(scenario: Scenario) -> None:
    if scenario.restart is not None and (not scenario.target.url or scenario.target.api == "python"):
        raise SpecError("there is no server to start anew: leave out --restart-command")
    warming = scenario.read_warming()
    if warming is None:
        return
    warming.events(scenario.horizon_s)
    if isinstance(warming, Cold) and scenario.target.url and scenario.restart is None:
        raise SpecError(
            "a model cannot be unloaded from outside: give --restart-command, which ends the server and starts it "
            "anew; --warmth cold-cache empties only the cache"
        )
    if scenario.facts.cache_warmth not in (None, warming.state):
        raise SpecError(f"warmth brings about {warming.state!r}, and facts say {scenario.facts.cache_warmth!r}")
    if warming.settles and scenario.closed is not None:
        raise SpecError("a closed loop has no steady traffic to settle: leave out --warmth hot, or --closed")
    if scenario.target.api in ("http", "python") and warming.primes:
        raise SpecError(f"--api {scenario.target.api} has no prefix cache that is known of: leave --warmth out")


def _seconds(text: str, name: str) -> float:
    with saying_where(name):
        return parse_seconds(text)


def default_folder() -> Path:
    return Path(time.strftime("openloop-run-%Y%m%d-%H%M%S"))


def run_scenario(
    scenario: Scenario,
    out: str | Path,
    watch: Watch | None = None,
    command: list[str] | None = None,
    ray: str | None = None,
) -> Run:
    """Drive what the scenario names, as it says, into the folder `out`; from all machines of a Ray cluster, if one is
    named, with so many workers on each."""
    load = _load(scenario, command)
    if scenario.restart is not None:
        headers = load.sites[0][1].headers
        notes = restart(scenario.restart, [place for place, _ in load.sites], headers=headers)
        load = replace(load, facts={**load.facts, "notes": (*load.facts["notes"], *notes)})
    if ray is None:
        return drive(load, out, watch)
    with connected(ray) as cluster:
        return spread(load, out, hosts_on(cluster, MachinePart, scenario.workers), watch)


def wait_until_free(scenario: Scenario, patience_s: float) -> None:
    """Until a server answers a short question at once again, or for so long."""
    place, target = _sites(scenario.target, scenario.urls)[0]
    until = time.monotonic() + patience_s
    while isinstance(target, JsonTarget) and time.monotonic() < until:
        asked = time.monotonic()
        with contextlib.suppress(OSError, WireError):
            exchange(place, target.encode(Ask((("user", "ready?"),), target.fewest), 0), FREE_S)
            if time.monotonic() - asked < FREE_S:
                return
        time.sleep(FREE_S)


def _load(scenario: Scenario, command: list[str] | None) -> Load:
    spec = scenario.target
    urls = scenario.urls
    sites = _sites(spec, urls)
    words, told = _words(scenario, *sites[0])
    cap = f"an experiment with at most {scenario.connections} connections: requests waited for one, and that counts"
    facts = {
        "target": ", ".join(map(shown, urls)),
        "model": spec.model or without_keys(sites[0][1].model, sites[0][1].secrets),
        "command": command and _without_secrets(command),
        "slo": scenario.whole_slo(),
        "prices": scenario.read_prices(),
        "events": tuple(
            TimedEvent(at_ns=to_ns(_seconds(each.at, "at")), kind=each.kind, detail=each.detail)
            for each in scenario.events
        ),
        "notes": (*([cap] if scenario.connections else []), *told),
        **{name: value for name in Facts.__struct_fields__ if (value := getattr(scenario.facts, name)) is not None},
    }
    return Load(
        sites,
        scenario.read_workload(),
        scenario.read_arrivals(),
        scenario.horizon_s,
        scenario.seed,
        words,
        _seconds(scenario.timeout, "timeout"),
        scenario.drain_s,
        scenario.workers,
        scenario.connections,
        scenario.closed,
        gating=scenario.read_gating(),
        keep_texts=scenario.keep_texts,
        warming=scenario.read_warming(),
        cache_salt=spec.cache_salt,
        most_requests=scenario.limits.requests,
        most_spend=scenario.limits.spend,
        metrics=dict(sites[0][1].headers) if spec.metrics else None,
        facts=facts,
        **scenario.policies(),
    )


def _without_secrets(command: list[str]) -> list[str]:
    """What was typed, less the values of headers and what is secret in URLs."""
    hide: dict[str, Callable[[str], str]] = {
        "--header": lambda value: f"{value.partition(':')[0]}: ...",
        "--target": shown,
        "--restart-command": lambda _: "...",
    }
    found: list[str] = []
    for before, word in zip(["", *command], command, strict=False):
        flag, equals, value = word.partition("=")
        if equals and flag in hide:
            found.append(f"{flag}={hide[flag](value)}")
        else:
            found.append(hide[before](word) if before in hide else word)
    return found


def _sites(spec: TargetSpec, urls: list[str]) -> list[tuple[Place, Target]]:
    headers = _headers(spec.headers)
    kind = TARGETS[spec.api]
    env = spec.key_env or kind.key_env
    key = os.environ.get(env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise SpecError(f"the key in {env} has characters that no key has")
    if key:
        given = {name.lower() for name in headers}
        headers |= {name: value for name, value in kind.key_headers(key).items() if name.lower() not in given}
    if kind is Function:
        for url in urls:
            find_function(url)
        places = [Place(url, "", Address(0, url, 0)) for url in urls]
    else:
        places = [find_place(url, spec.ca, insecure=spec.insecure) for url in urls]
    model = spec.model or (only_model(places[0], headers) if kind.has_models else "")
    common: dict[str, Any] = {"model": model, "headers": headers, "stream": spec.stream, "extra": spec.extra}
    if spec.replica_header:
        common["replica_header"] = spec.replica_header
    if kind is Plain:
        common |= {"method": spec.method, "template": _template(spec)}
    bases = [place.path if kind is Plain else place.base for place in places]
    return [(p, kind(p.host, base=base, query=p.query, **common)) for p, base in zip(places, bases, strict=True)]


def check_files(scenario: Scenario) -> None:
    """What a run would read besides the workload."""
    _template(scenario.target)
    look_at_certificates(scenario.target.ca)
    if scenario.tokenizer:
        word_tokens(scenario.tokenizer)


def _template(spec: TargetSpec) -> str:
    return "" if spec.template is None else check_template(read_text(spec.template, "it is the body of requests"))


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        line = f"{name}: {value}"
        if not name.strip() or ":" in name or not (line.isascii() and line.isprintable()):
            raise SpecError(f"the header {line!r} is none; write it as 'Name: value'")
    return {"Host" if name.lower() == "host" else name: value for name, value in given.items()}  # in place of ours


def _words(scenario: Scenario, place: Place, target: Target) -> tuple[Words, list[str]]:
    """What prompts are made of, and what is not known of them."""
    vocabulary, scale = word_tokens(scenario.tokenizer) if scenario.tokenizer else (None, Scale())
    words = Words(scenario.seed, scale, vocabulary)
    if scenario.tokens_per_word is not None or not isinstance(target, JsonTarget):
        return Words(scenario.seed, Scale(scenario.tokens_per_word or scale.per_word), vocabulary), []
    found = measure_scale(place, target, words)
    if isinstance(found, Scale):
        exact = Scale(scale.per_word, found.overhead) if vocabulary else found
        return Words(scenario.seed, exact, vocabulary), []
    if vocabulary:
        return words, []
    return words, [f"how the server counts tokens is not known: {found}; a word of a prompt was taken for one token"]
