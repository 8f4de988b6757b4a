"""Kernel processes and the Jupyter protocol: the only package that uses jupyter_client and zmq."""
