"""The answers of package sources: observed in pip's process (`watch`), worded in the kernel's (`answers`), and
remembered for sources that do not answer at all (`silent`)."""
