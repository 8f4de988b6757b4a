"""One client on two file descriptors: stdin and stdout."""
