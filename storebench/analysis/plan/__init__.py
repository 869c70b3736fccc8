"""The rates of stores on another machine."""
