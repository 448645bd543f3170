"""What is known of the node's GPUs, and when one of them is lost (requirements D11)."""
