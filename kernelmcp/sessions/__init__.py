"""One workspace and one kernel each: found, limited, bound, stopped, deleted."""
