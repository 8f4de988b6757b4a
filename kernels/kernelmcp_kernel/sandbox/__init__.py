"""Turns a policy into a confined process: Landlock, seccomp, Seatbelt, limits. It must not know its purpose."""
