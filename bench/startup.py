"""How much processor time does `openloop --help` take, beside a Python that does nothing?

    python bench/startup.py

The aim is 0.3 s: a command line that one asks for help must not load a numerical library first.
"""

import resource
import subprocess
import sys

AIM_S = 0.3


def cpu_seconds(*arguments: str) -> float:
    """Processor time of the quickest of five runs."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def main() -> None:
    nothing, helping = cpu_seconds("-c", ""), cpu_seconds("-m", "openloop", "--help")
    print(f"python -c ''       {nothing:.3f} s of CPU")
    print(
        f"openloop --help    {helping:.3f} s of CPU  {helping / nothing:.1f}x as much, {helping / AIM_S:.0%} of the aim"
    )
    print(
        f"=> openloop --help | {helping:.3f} s of CPU | Python that does nothing: {nothing:.3f} s"
        f" | {helping / nothing:.1f}x | under {AIM_S} s"
    )
    sys.exit(helping > AIM_S)


if __name__ == "__main__":
    main()
