"""What the sources of packages answer: seen in pip's process (`watch`), put into words in the kernel's (`answers`), and
remembered where one does not answer at all (`silent`)."""
