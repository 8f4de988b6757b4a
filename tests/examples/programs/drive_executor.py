"""The executor of examples/smolagents_executor.py as another program would use it: with a tool and variables."""

import json
import sys

sys.path.insert(0, sys.argv[1])

from kernel_session import open_session
from smolagents import tool
from smolagents_executor import KernelExecutor


@tool
def shout(word: str) -> str:
    """Says it loudly.

    Args:
        word: what is said
    """
    return word.upper() + "!"


with open_session() as session:
    executor = KernelExecutor(session)
    executor.send_variables({"word": 'it\'s \\ "here"\n', "numbers": [1, 2]})
    executor.send_tools({"shout": shout})
    found = {"called": executor("shout(word)").output, "sum": executor("sum(numbers)").output}
    executor("numbers.append(39)")
    answer = executor("print('almost')\nfinal_answer(numbers)")
    found |= {"answer": answer.output, "logs": answer.logs, "is_final": answer.is_final_answer}
    try:
        executor.send_variables({"bad": object()})
    except TypeError:
        found["refused"] = True
print(json.dumps(found))
