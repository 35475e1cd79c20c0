"""GPU facts and samples: parsers for nvidia-smi and friends."""
