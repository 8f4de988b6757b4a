"""Kernel processes and the Jupyter protocol: the only place with jupyter_client and zmq."""
