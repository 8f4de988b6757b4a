"""From nothing to the first result: the wheel in each usual way, with an empty home and empty caches.

python scripts/install_bench.py WHEEL
"""

import itertools
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.packaging.installed import WAYS, Way, first_results, fresh_environment


def measure(way: Way, wheel: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="kernelmcp-install-") as name:
        folder, before = Path(name), resource.getrusage(resource.RUSAGE_CHILDREN)
        env = fresh_environment(folder / "home", folder) | {"PIP_CACHE_DIR": str(folder / "pip-cache")}
        times = [time.perf_counter()]
        command = way(wheel, folder, env)
        for _ in range(2):
            times.append(time.perf_counter())
            first_results(command, env, ("execute_code", {"code": "6 * 7"}))
        times.append(time.perf_counter())
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    install, first, second = (after - before for before, after in itertools.pairwise(times))
    title = way.__name__.removeprefix("with_").replace("_", " ")
    return f"| {title} | {install:.1f} s | {first:.1f} s | {install + first:.1f} s | {second:.1f} s | {cpu:.0f} s |"


if __name__ == "__main__":
    print("| way | installation | first start, to the result | together | the next start | CPU, all of it |")
    print("|---|---|---|---|---|---|")
    for each in WAYS:
        print(measure(each, Path(sys.argv[1]).resolve()))
