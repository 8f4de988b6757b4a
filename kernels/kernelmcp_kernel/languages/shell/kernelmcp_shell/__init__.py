"""The code of a shell guest's process. Imports little of the standard library: each module delays the first cell."""
