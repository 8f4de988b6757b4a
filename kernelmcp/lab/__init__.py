"""`kernelmcp lab`: a JupyterLab on the live sessions of every server of this home, in its own process."""
