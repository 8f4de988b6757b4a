"""matplotlib in a session: figures as pictures, drawn within the cell's time, where there is no screen to look at.

Each module here is for one of matplotlib's; `packages/shims.py` puts it in place when that one is imported.
"""
