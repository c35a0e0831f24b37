"""The command line of spillgrad."""
