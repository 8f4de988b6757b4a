"""Sessions on disk: their records, files and transcripts, the use of disk space, and the deletion of old sessions."""
