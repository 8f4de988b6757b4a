"""Programs and commands without processes: `python file.py` runs in this guest, everything else in the session's shell.

`command_line` parses commands, `run` runs a Python program, `commands` passes the others to the shell, and `processes`
implements subprocess and os with both.
"""
