"""The kernel's ZMQ sockets: how messages are built, signed, sent and received. Must not know what they say."""
