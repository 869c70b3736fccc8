"""What the operating system is asked for besides files: processes, signals, and scratch space that goes with its owner."""
