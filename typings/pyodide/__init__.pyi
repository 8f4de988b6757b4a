"""What guest code uses of Pyodide's Python side, which cannot be installed outside of Pyodide."""
