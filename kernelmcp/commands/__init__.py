"""Commands that a person runs once: the demo, doctor, the configuration of clients, wheels built from source."""
