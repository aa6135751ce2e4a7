"""The commands of `vanilla-transformer`, one file each: its arguments and its call."""
