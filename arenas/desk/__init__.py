"""Service desk: a customer with a private wish, and an agent with a policy and tools."""
