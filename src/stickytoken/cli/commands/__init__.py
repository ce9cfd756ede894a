"""One file per command: parse the options, call one library function, print its record."""
