"""How the scripts start vLLM, on one core and without a GPU."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.engines import Checks, Engine, engine

SAMPLING: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0}
SLO = "ttft<=500ms, tpot<=100ms"
NO_CACHE = ("--no-enable-prefix-caching",)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # its cache can be emptied
}


@dataclass(frozen=True)
class Setup:
    python: str
    model: str
    out: Path
    repeats: int
    seconds: float
    rate: float
    overload: float
    tries: int
    checks: Checks

    def serve(self, name: str, *flags: str) -> AbstractContextManager[Engine]:
        command = [self.python, "-m", "vllm.entrypoints.cli.main", "serve", self.model, "--served-model-name", "tiny"]
        command += ["--enforce-eager", "--dtype", "float32", "--enable-prompt-tokens-details", *flags]
        if "--max-model-len" not in flags:
            command += ["--max-model-len", "4096"]
        return engine(command, self.out / f"{name}.log", env=ENVIRONMENT)
