"""The one principal that has a name of ours. All others are what `http` found in a request."""

LOCAL = "local"
"""The principal of stdio: whoever may start the process."""
