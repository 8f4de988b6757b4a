"""The notebook of a session as its live record: executions in its kernel become cells of a shared document."""
