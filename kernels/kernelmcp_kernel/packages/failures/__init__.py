"""Why pip failed: described in pip's process (`failure_report`), and worded in the kernel's (`reasons`)."""
