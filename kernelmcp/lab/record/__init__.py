"""The notebook of a session as its live record: what its kernel does becomes cells of a shared document."""
