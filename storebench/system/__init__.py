"""Services of the operating system besides files: processes, signals, and scratch space that ends with its owner."""
