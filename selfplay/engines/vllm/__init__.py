"""The engine on vLLM 0.32, in the process of the run."""
