"""The gateway: serves inference, owns each client's stream, resumes it, and offers the operations API."""
