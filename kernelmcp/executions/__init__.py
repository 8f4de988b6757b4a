"""Executions: the code, state and result of each, and the ones that a session keeps."""
