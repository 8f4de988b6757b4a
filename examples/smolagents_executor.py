# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3", "pillow>=11,<14", "smolagents[openai]>=1.26,<2"]
# ///
"""A smolagents CodeAgent whose code runs in a kernelmcp session instead of in your process.

smolagents' own local executor is not a sandbox, and its remote ones need Docker or an account. This one is a process on
your machine: each step of the agent is a cell of one Jupyter kernel, so variables persist from step to step. The model
also sees the plots of its steps. What comes back is text, pictures and, for the final answer, JSON.

Install kernelmcp so that `kernelmcp --version` works, then, for OpenAI or any server with its API (OPENAI_BASE_URL):

    export OPENAI_API_KEY=...
    uv run examples/smolagents_executor.py "How often does a fair coin show 5 heads in a row in 100 throws?"
"""

import argparse
import json
from io import BytesIO
from typing import Any

from kernel_session import KernelSession, open_session
from PIL import Image
from smolagents import ActionStep, CodeAgent, OpenAIModel, Tool
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.tools import get_tools_definition_code

TASK = "Plot sin(x) / x from -20 to 20, and find the smallest value of it to 4 digits."
# Runs in the sandbox, where the answer becomes JSON; whatever has no JSON becomes its text.
FINAL_ANSWER = """
class FinalAnswer(BaseException):
    pass

def final_answer(answer):
    import json
    from IPython.display import display
    answer = json.loads(json.dumps(answer, default=str))
    display({"application/json": {"final_answer": answer}, "text/plain": "final answer"}, raw=True)
    raise FinalAnswer
"""


class KernelExecutor(PythonExecutor):
    """Each call is a cell. An exception of the code becomes one here, whose text smolagents shows to the model."""

    def __init__(self, session: KernelSession, timeout_seconds: float = 60) -> None:
        self._session = session
        self._timeout = timeout_seconds
        self._pictures: list[Image.Image] = []
        self._sent: list[str] = []

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Tools run in the sandbox as well: their source is sent, as to smolagents' remote executors."""
        others = {name: tool for name, tool in tools.items() if name != "final_answer"}
        self._send(get_tools_definition_code(others) + FINAL_ANSWER)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """As JSON, in a string literal of the code."""
        if variables:
            self._send(f"import json\nglobals().update(json.loads({json.dumps(variables)!r}))")

    def __call__(self, code_action: str) -> CodeOutput:
        # At its time limit the code is interrupted, which reads as KeyboardInterrupt; variables stay.
        result = self._session.run("execute_code", code=code_action, timeout=self._timeout)
        self._pictures += [open_picture(content) for _, content in result.pictures]
        if result.fields["state_lost"]:
            # The code ended its own process. The error says so; the tools have to be there again.
            for code in self._sent:
                self._session.run("execute_code", code=code)
        error = result.fields["error"]
        if error is None:
            return CodeOutput(output=result.fields["result"], logs=result.fields["stdout"], is_final_answer=False)
        shown = [output["uri"] for output in result.fields["outputs"] if "application/json" in output["mime_types"]]
        if error["name"] == "FinalAnswer" and shown:
            answer = json.loads(self._session.read(shown[-1]))["application/json"]["final_answer"]
            return CodeOutput(output=answer, logs=result.fields["stdout"], is_final_answer=True)
        raise RuntimeError(result.text)

    def show_pictures(self, step: ActionStep) -> None:
        """A step callback: the next call of the model contains the pictures of this step."""
        step.observations_images, self._pictures = self._pictures, []

    def _send(self, code: str) -> None:
        self(code)
        if code not in self._sent:
            self._sent.append(code)


def open_picture(content: bytes) -> Image.Image:
    """The formats are named, so that Pillow tries no other one on a file that somebody else's code made."""
    return Image.open(BytesIO(content), formats=["PNG", "JPEG"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", default="gpt-5")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that one step may take")
    options = parser.parse_args()
    with open_session() as session:
        executor = KernelExecutor(session, options.timeout)
        agent = CodeAgent(
            tools=[],
            model=OpenAIModel(options.model),
            executor=executor,
            additional_authorized_imports=["numpy", "pandas", "matplotlib.pyplot"],  # named in the prompt; all work
            step_callbacks=[executor.show_pictures],
            instructions="The figures of a step are shown to you after it. Files in /workspace persist.",
        )
        print(agent.run(options.task))


if __name__ == "__main__":
    main()
