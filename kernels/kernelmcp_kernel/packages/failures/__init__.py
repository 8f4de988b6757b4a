"""Why pip failed: described in pip's process (`in_pip`), and worded in the kernel's (`reasons`)."""
