"""Programs and commands, where no process can be started: `python file.py` runs in this guest, everything else is asked
of the session's shell.

`command_line` says what is meant, `run` runs a program of Python's, `commands` has the shell run what is for it, and
`processes` is what subprocess and os make of both.
"""
