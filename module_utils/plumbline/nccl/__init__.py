"""NCCL profiles: validation, delivery, and the proof from NCCL's own log."""
