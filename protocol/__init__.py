"""The wire between sentinel, workers and agents: `unbroken.proto` and its generated stubs."""
