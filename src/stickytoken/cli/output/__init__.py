"""What commands print: results on stdout, everything else on stderr."""
