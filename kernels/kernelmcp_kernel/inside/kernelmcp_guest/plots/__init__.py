"""matplotlib in a session: figures become images, drawn within the cell's time, since there is no screen.

Each module here is for one of matplotlib's; `packages/shims.py` applies it when that one is imported.
"""
