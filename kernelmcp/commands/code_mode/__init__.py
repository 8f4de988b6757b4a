"""Commands for code mode: the log of the calls that code made."""
