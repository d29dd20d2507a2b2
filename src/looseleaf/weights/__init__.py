"""From a model's name to arrays: finding the file, reading it, decoding its tensors."""
