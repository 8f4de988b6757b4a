"""Which executions a session keeps: the newest, within limits, whatever ends in which order and is heard of later."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmcp.config.settings import Settings, Values
from kernelmcp.executions import kept_executions
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.kept_executions import KeptExecutions

COUNT = 8
MEMORY, STREAM = 400_000, 50_000


def a_policy() -> Settings:
    config = {"sessions": {"kept_executions": COUNT}}
    limits = {"outputs_max_bytes": MEMORY, "stdout_max_bytes": STREAM, "stderr_max_bytes": STREAM}
    return Settings(Values.model_validate({"config": config, "policy": limits}))


def add(kept: KeptExecutions, name: str) -> Execution:
    fold = kept.new_fold(name, lambda op: None)
    execution = Execution("s", "local", "", 1.0, fold.outputs, fold, name)
    kept.add(execution)
    return execution


def allowed(known: list[Execution], *, stopped: bool) -> list[str]:
    """Looks at all of them each time, newest first."""
    count, memory = COUNT, kept_executions.STOPPED_BYTES if stopped else MEMORY
    disk = kept_executions.DISK_SHARES * 2 * STREAM
    exempt, left = not stopped, []
    for execution in reversed(known):
        count, memory = count - 1, memory - execution.memory_bytes
        disk -= execution.outputs.disk_bytes
        is_over = min(count, memory, disk) < 0
        has_run = execution.done.is_set() and execution.started is not None
        if not execution.done.is_set() or (exempt and has_run) or not is_over:
            left.insert(0, execution.id)
        exempt = exempt and not has_run
    return left


NAMES = ["add", "add", "begin", "end", "stdout", "stderr", "show", "trim", "trim", "stop"]
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), min_size=30, max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_what_is_kept(done: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, known = KeptExecutions(a_policy(), Path(folder) / "outputs"), list[Execution]()
        for number, (step, which) in enumerate(done):
            one = known[-1 - which % len(known)] if known else None
            content: dict[str, Any] = {"name": step, "text": "x" * 20_000 * (1 + number % 10)}
            if step == "add":
                known.append(add(kept, str(number)))
            elif one is not None and step == "begin" and not one.done.is_set():
                one.started = one.submitted
            elif one is not None and step == "end":
                end(one)
            elif one is not None and step in ("stdout", "stderr"):
                one.hear("stream", content)
            elif one is not None and step == "show":
                one.hear("display_data", {"data": {"text/plain": content["text"]}})
            elif step in ("trim", "stop"):
                expected = allowed(known, stopped=step == "stop")
                kept.trim(stopped=step == "stop")
                known = [each for each in known if kept.get(each.id) is not None]
                assert [each.id for each in kept] == expected
        kept.clear()
        assert list(kept) == []


def end(execution: Execution) -> None:
    if not execution.done.is_set():
        execution.finish("ok", None, state_lost=False)
