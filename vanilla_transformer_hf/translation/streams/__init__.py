"""Streams of lines through a translator: in constant memory, in several processes, continued after a kill."""
