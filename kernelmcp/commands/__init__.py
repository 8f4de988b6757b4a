"""One-time commands for a person: the demo, doctor, the configuration of clients, wheels built from source."""
