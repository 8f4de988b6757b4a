"""The answers of package sources: observed in pip's process (`index_watch`), worded and remembered in the kernel's
(`answers`)."""
