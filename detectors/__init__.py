"""The sentinel: decides which node is alive, suspect, dead or on probation, and says so."""
