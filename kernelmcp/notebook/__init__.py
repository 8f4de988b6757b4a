"""The notebook of a session, which follows its log; and notebooks that are run again."""
