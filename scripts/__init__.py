"""The command line of moonpool and what developers run."""
