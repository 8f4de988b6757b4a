"""Records what /bin/bash makes of the snippets."""

import json

from . import RECORDED, run_bash, snippets

if __name__ == "__main__":
    results = {name: run_bash(code) for name, code in snippets().items()}
    RECORDED.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
