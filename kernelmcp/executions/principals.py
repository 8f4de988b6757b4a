"""The only principal that we name. `http` takes all others from requests."""

LOCAL = "local"
"""The principal of stdio: the user who starts the process."""
