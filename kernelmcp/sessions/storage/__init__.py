"""What sessions have on disk: their records, files and transcripts, who may take how much, and when the old ones go."""
