"""The command line: `unbroken` and its groups of commands."""
