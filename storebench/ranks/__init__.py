"""Jobs of many ranks: processes that train together, started by torchrun and joined by torch.distributed."""
