"""The learner turns samples into gradient steps: objective, batch, learner."""
