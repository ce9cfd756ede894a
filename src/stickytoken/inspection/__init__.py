"""What happens inside a model: hidden states, attention, Jacobians."""
