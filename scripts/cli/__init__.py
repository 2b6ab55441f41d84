"""The commands of `moonpool`, one file each."""
