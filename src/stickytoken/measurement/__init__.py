"""Everything that a measurement needs besides its method: result folders, and engines that encode texts."""
