"""The agent: starts and owns one engine process, answers probes, obeys fenced commands."""
