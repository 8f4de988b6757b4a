"""One execution: what is to run, how far it is, what came of it; and those that a session keeps."""
