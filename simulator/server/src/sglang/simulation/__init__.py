"""What the simulator declares instead of computing: physics, clock, noise, faults."""
