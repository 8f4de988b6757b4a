"""What a guest is made of: Node, Pyodide, the boot image, and the directories that it may write."""
