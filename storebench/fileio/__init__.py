"""Files in formats of other people's making: read within bounds, written whole or not at all."""
